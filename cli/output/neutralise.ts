/**
 * Makes untrusted text safe for a terminal: control characters (C0, DEL, C1), line separators and characters that
 * reorder text are spelled out instead of acting.
 */
export const neutralise = (text: string): string => text.replace(ACTING, spelledOut)

/** The last filter of text for people: only colours, line ends and tabs act. */
export const printable = (text: string): string =>
  text.replace(COLOUR_OR_ACTING, found =>
    found.length > 1 || found === '\n' || found === '\t' ? found : spelledOut(found),
  )

/** The same as `printable` for text without colours. */
export const plain = (text: string): string => text.split('\n').map(neutralise).join('\n')

/** JSON with the same characters escaped, which JSON itself leaves alone above U+001F. The value stays the same. */
export const safeJson = (value: unknown, space?: number): string =>
  (JSON.stringify(value, null, space) ?? 'null').replace(ACTING_IN_JSON, unicodeEscape)

// biome-ignore lint/suspicious/noControlCharactersInRegex: finding them is the purpose
const ACTING = /[\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/g
const ACTING_IN_JSON = /[\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/g

const COLOUR_OR_ACTING = new RegExp(`\\u001b\\[[0-9;]*m|${ACTING.source}`, 'g')

const unicodeEscape = (character: string): string => `\\u${character.charCodeAt(0).toString(16).padStart(4, '0')}`

const spelledOut = (character: string): string =>
  character === '\n' ? '\\n' : character === '\r' ? '\\r' : character === '\t' ? '\\t' : unicodeEscape(character)
