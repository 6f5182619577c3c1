import { parseHttpDate } from '../../shared/http-date.ts'
import { parseIso } from '../../shared/time.ts'

/** Longer than any wait that is honoured, and still an exact number. */
const LONGEST_MS = 1e15

/**
 * The wait that an answer's `Retry-After` (RFC 9110 section 10.2.3) asks for, in milliseconds from `nowMs`. It may be
 * seconds, or an HTTP-date in any of its three forms. A past time or a negative number is 0. Undefined if it is
 * unreadable.
 *
 * It accepts more than the RFC (fractions of a second, ISO 8601 with an offset), because an unreadable Retry-After
 * makes the webhook inactive.
 */
export const parseRetryAfter = (header: string, nowMs: number): number | undefined => {
  const text = header.trim()
  if (/^[+-]?\d+(\.\d+)?$/.test(text)) return within(Number(text) * 1000)
  const at = parseHttpDate(text, nowMs) ?? parseIso(text)
  return at === undefined ? undefined : within(at - nowMs)
}

const within = (ms: number): number => Math.min(Math.max(Math.round(ms), 0), LONGEST_MS)
