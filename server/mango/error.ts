/**
 * A selector, sort or page that cannot be answered. `message` names what was wrong and what would be right; `path` says
 * where it stands in the query, as in `selector.organisation.$and[1].name`.
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

/** A text of the caller's for a message: quoted, and cut if it is long. */
export const quoted = (text: string): string => {
  const shown = JSON.stringify(text)
  return shown.length > 80 ? `${shown.slice(0, 79)}…` : shown
}
