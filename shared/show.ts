const UNPRINTABLE = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}]/gu

/** JSON.stringify takes the square of a value's depth, and a stranger chooses that. */
const MAX_DEPTH = 100

const isDeeperThan = (levels: number, value: unknown): boolean =>
  typeof value === 'object' &&
  value !== null &&
  (levels === 0 || Object.values(value).some(member => isDeeperThan(levels - 1, member)))

/** Prints an untrusted value on one line, shortened and without control or direction characters. */
export const show = (value: unknown): string => {
  if (value === undefined) return 'nothing'
  if (isDeeperThan(MAX_DEPTH, value)) return 'a value nested too deeply to show'
  const text = JSON.stringify(value)
  const short = text.length > 200 ? `${text.slice(0, 200)}…` : text
  return short.replace(UNPRINTABLE, it => `\\u{${it.codePointAt(0)!.toString(16)}}`)
}
