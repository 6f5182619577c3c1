import { parseHttpDate } from '../../shared/http-date.ts'
import { parseIso } from '../../shared/time.ts'

/** Far beyond any wait that is honoured, and still an exact number. */
const LONGEST_MS = 1e15

/**
 * How long an answer's `Retry-After` (RFC 9110 section 10.2.3) asks to wait, in milliseconds from `nowMs`: seconds, or
 * an HTTP-date in any of its three forms. A moment that has passed, or a negative number, is 0. Undefined if it can't
 * be read.
 *
 * More is read than the RFC allows (fractions of a second, ISO 8601 with an offset), since a webhook whose Retry-After
 * can't be read is set to inactive.
 */
export const parseRetryAfter = (header: string, nowMs: number): number | undefined => {
  const text = header.trim()
  if (/^[+-]?\d+(\.\d+)?$/.test(text)) return within(Number(text) * 1000)
  const at = parseHttpDate(text, nowMs) ?? parseIso(text)
  return at === undefined ? undefined : within(at - nowMs)
}

const within = (ms: number): number => Math.min(Math.max(Math.round(ms), 0), LONGEST_MS)
