/**
 * An invalid selector, sort or page. `message` says what was wrong and what would be right; `path` is the place in the
 * query, such as `selector.organisation.$and[1].name`.
 */
export class MangoError extends Error {
  readonly code: 'BAD_USER_INPUT' | 'RESULT_TOO_LARGE' | 'QUERY_TOO_COMPLEX'
  readonly path: string

  constructor(code: MangoError['code'], path: string, message: string) {
    super(message)
    this.name = 'MangoError'
    this.code = code
    this.path = path
  }
}

export const badQuery = (path: string, message: string): MangoError =>
  new MangoError('BAD_USER_INPUT', path, `${path}: ${message}`)

/** A caller's text for a message, quoted and shortened. */
export const quoted = (text: string): string => {
  const shown = JSON.stringify(text)
  return shown.length > 80 ? `${shown.slice(0, 79)}…` : shown
}
