/** A request reconstructed from curl's output. */
export interface ToldRequest {
  /** Request line and headers. */
  head: string
  /** Undefined if curl did not print it, as with -v, or printed it incompletely, as --trace-ascii may. */
  body: string | undefined
  /**
   * Whether the body has the exact bytes that were sent: --trace-ascii prints a dot for other characters than ASCII.
   */
  isExact: boolean
}

/** The first request in what curl prints with `-v`, `--trace` or `--trace-ascii`; undefined if it is none of these. */
export const requestFromCurl = (text: string): ToldRequest | undefined => fromTrace(text) ?? fromVerbose(text)

/** `-v` marks what it sends with `>`, and leaves the body out. */
const fromVerbose = (text: string): ToldRequest | undefined => {
  const lines = text.split(/\r?\n/)
  const first = lines.findIndex(line => /^> [A-Z]+ \S+ HTTP\/\d/.test(line))
  if (first === -1) return undefined
  const after = lines.slice(first)
  const end = after.findIndex(line => !/^> ./.test(line))
  const head = after.slice(0, end === -1 ? undefined : end).map(line => line.slice(2))
  return { head: head.join('\n'), body: undefined, isExact: false }
}

const SECTION = /^(?:[\d:.]+ )?(?:\[[\d-]+\] )?(=>|<=|==) (?:(Send header|Send data),)?/
const LINE = /^([0-9a-f]{4,}): (.*)$/

/** Both traces print what is sent in sections of numbered lines: 16 bytes a line in hexadecimal, or 64 characters. */
const fromTrace = (text: string): ToldRequest | undefined => {
  const sections: { kind: string; lines: { offset: number; text: string }[] }[] = []
  for (const line of text.split(/\r?\n/)) {
    const [isSection, , kind = ''] = SECTION.exec(line) ?? []
    if (isSection !== undefined) {
      sections.push({ kind, lines: [] })
      continue
    }
    const [, offset, content] = LINE.exec(line) ?? []
    if (offset !== undefined) sections.at(-1)?.lines.push({ offset: Number.parseInt(offset, 16), text: content! })
  }
  const first = sections.findIndex(({ kind }) => kind === 'Send header')
  if (first === -1) return undefined
  const next = sections.findIndex(({ kind }, index) => index > first && kind === 'Send header')
  const own = sections.slice(first, next === -1 ? undefined : next)
  const isHex = /^(?:[0-9a-f]{2} ){16}/.test(own[0]!.lines[0]?.text ?? '')
  const content = (kind: string) => {
    const lines = own.filter(section => section.kind === kind).map(section => section.lines)
    return isHex ? Buffer.concat(lines.map(bytesOf)).toString('utf8') : lines.map(textOf).join('')
  }
  const body = content('Send data')
  return { head: content('Send header').trimEnd(), body: isHex || isJson(body) ? body : undefined, isExact: isHex }
}

const bytesOf = (lines: { text: string }[]): Buffer =>
  Buffer.from(lines.map(({ text }) => text.slice(0, 48).replaceAll(' ', '')).join(''), 'hex')

/** A line that ends with CR LF is complete; a longer one continues in the next. */
const textOf = (lines: { offset: number; text: string }[]): string =>
  lines
    .map(({ offset, text }, index) => {
      const next = lines[index + 1]
      return next !== undefined && next.offset > offset + text.length ? `${text}\r\n` : text
    })
    .join('')

/**
 * `--trace-ascii` prints a dot for a line feed and for other characters than ASCII; inside a string this is harmless.
 */
const isJson = (text: string): boolean => {
  try {
    JSON.parse(text)
    return true
  } catch {
    return false
  }
}
