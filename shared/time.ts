/** Times are epoch milliseconds inside, and ISO 8601 with an offset outside: `2026-11-21T00:40:01.123+00:00`. */
export const toIso = (ms: number): string => new Date(ms).toISOString().replace('Z', '+00:00')

const ISO = /^\d{4}-\d{2}-\d{2}(T\d{2}:\d{2}(:\d{2}(\.\d{1,9})?)?(Z|[+-]\d{2}:?\d{2}))?$/i

/**
 * Epoch milliseconds of an ISO 8601 time with offset, or of a date (its start in UTC); undefined if `text` is neither.
 */
export const parseIso = (text: string): number | undefined => {
  if (!ISO.test(text)) return undefined
  const ms = Date.parse(text.replace(/([+-]\d{2})(\d{2})$/, '$1:$2'))
  return Number.isNaN(ms) || !existsInCalendar(text) ? undefined : ms
}

/** Whether the date exists: `Date.parse` turns 30 February into a day in March. */
const existsInCalendar = (text: string): boolean => {
  const date = text.slice(0, 10)
  const ms = Date.parse(date)
  return !Number.isNaN(ms) && new Date(ms).toISOString().startsWith(date)
}

/** When a UUID of version 7 was made: it begins with its epoch milliseconds, 48 bits (RFC 9562 section 5.7). */
export const timeOfId = (id: string): number => Number.parseInt(id.slice(0, 8) + id.slice(9, 13), 16)
