import { RE2JS } from 're2js'
import { badQuery, quoted } from './error.ts'
import { type Meter, unmetered } from './meter.ts'
import { type Prefilter, prefilterOf } from './prefilter.ts'

export const MAX_PATTERN_LENGTH = 1_000
/** Instructions of the compiled pattern: matching takes at most this many steps a character. */
export const MAX_PATTERN_SIZE = 2_000
/** The most steps, about 6 ms, between two checks whether matching may continue. */
const STEPS_BETWEEN_LOOKS = 100_000
/** What took more steps is remembered, in case the row is matched again. */
const STEPS_TO_REMEMBER = 1_000

/** A regular expression (RE2 syntax) that looks for a match anywhere in a text, in time linear in the text's length. */
export type Pattern = {
  source: string
  test(text: string): boolean
  prefilter: Prefilter
}

/** Compiles a pattern. Throws `MangoError` if it is too long, too large or not RE2 syntax. */
export const compilePattern = (source: string, where: string, meter: Meter = unmetered): Pattern => {
  if (source.length > MAX_PATTERN_LENGTH) {
    throw badQuery(where, `has ${source.length} characters; a pattern has at most ${MAX_PATTERN_LENGTH}`)
  }
  const compiled = compile(source, where)
  const size = compiled.programSize()
  meter.compile(size)
  if (size > MAX_PATTERN_SIZE) {
    throw badQuery(where, `${quoted(source)} is too large with its repetitions expanded; use fewer repetitions`)
  }
  const remembered = meter.remember?.()
  let steps = 0
  const test = (text: string): boolean => {
    const known = remembered?.get(text)
    if (known !== undefined) return known
    const own = size * text.length
    steps += own
    if (steps > STEPS_BETWEEN_LOOKS) {
      meter.look()
      steps = 0
    }
    const found = compiled.test(text)
    if (own > STEPS_TO_REMEMBER) remembered?.set(text, found)
    return found
  }
  return { source, test, prefilter: prefilterOf(source) }
}

const compile = (source: string, where: string): RE2JS => {
  try {
    return RE2JS.compile(source)
  } catch (error) {
    const reason = error instanceof Error ? error.message : String(error)
    throw badQuery(where, `${quoted(source)} is not a regular expression in RE2 syntax (${reason})`)
  }
}
