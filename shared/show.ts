const UNPRINTABLE = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}]/gu

/** Prints an untrusted value on one line, shortened and without control or direction characters. */
export const show = (value: unknown): string => {
  if (value === undefined) return 'nothing'
  let text: string
  try {
    text = JSON.stringify(value)
  } catch {
    return 'a value nested too deeply to show'
  }
  const short = text.length > 200 ? `${text.slice(0, 200)}…` : text
  return short.replace(UNPRINTABLE, it => `\\u{${it.codePointAt(0)!.toString(16)}}`)
}
