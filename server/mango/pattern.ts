import { RE2JS } from 're2js'
import { badQuery, quoted } from './error.ts'

export const MAX_PATTERN_LENGTH = 1_000
/** Instructions of the compiled pattern: matching takes at most this many steps a character. */
export const MAX_PATTERN_SIZE = 2_000

/** A regular expression (RE2 syntax) that looks for a match anywhere in a text, in time linear in the text's length. */
export type Pattern = {
  source: string
  test(text: string): boolean
  /** Every matching text has one of these. None: nothing is known of it. */
  literals: Literal[]
}

export type Literal = {
  text: string
  at: 'start' | 'anywhere'
  /** `text` is in lower case and ASCII, and stands in the matching text in either case. */
  ignoreCase: boolean
  /** The literal says it all: any text that has it matches. */
  complete: boolean
}

/** Compiles a pattern. Throws `MangoError` where it is too long, too large or no RE2 syntax. */
export const compilePattern = (source: string, where: string): Pattern => {
  if (source.length > MAX_PATTERN_LENGTH) {
    throw badQuery(where, `has ${source.length} characters; a pattern has at most ${MAX_PATTERN_LENGTH}`)
  }
  const compiled = compile(source, where)
  if (compiled.programSize() > MAX_PATTERN_SIZE) {
    throw badQuery(where, `${quoted(source)} is too large once its repetitions are written out; repeat less`)
  }
  return { source, test: text => compiled.test(text), literals: literalsOf(source) }
}

const compile = (source: string, where: string): RE2JS => {
  try {
    return RE2JS.compile(source)
  } catch (error) {
    const reason = error instanceof Error ? error.message : String(error)
    throw badQuery(where, `${quoted(source)} is not a regular expression in RE2 syntax (${reason})`)
  }
}

/**
 * For each alternative of a pattern a piece of text that its match cannot be without. Reads what it is sure of and gives
 * up on the rest, so that an empty list means nothing more than that none was found.
 */
export const literalsOf = (source: string): Literal[] => {
  const reader = new LiteralReader(source)
  return reader.read() && reader.found.every(literal => literal !== undefined) ? (reader.found as Literal[]) : []
}

type Piece = Omit<Literal, 'complete'>

const QUANTIFIER = /^(?:[*+?]|\{\d+(?:,\d*)?\})\??/
const FLAGS = /^\(\?([imsU]*)(?:-[imsU]*)?\)/

class LiteralReader {
  readonly found: (Literal | undefined)[] = []
  readonly #source: string
  #pieces: Piece[] = []
  /** Nothing but letters, perhaps after a `^`. */
  #onlyText = true
  #anchored = false
  #ignoreCase = false
  #multiline = false
  #run = ''
  #runAt: Literal['at'] = 'anywhere'

  constructor(source: string) {
    this.#source = source
  }

  /** False where the pattern has something that this does not understand. */
  read(): boolean {
    let rest: string | undefined = this.#source
    while (rest !== undefined) {
      const after = this.#alternative(rest)
      if (after === undefined) return false
      rest = after.startsWith('|') ? after.slice(1) : undefined
    }
    return true
  }

  /** What follows the alternative that `source` begins with. */
  #alternative(source: string): string | undefined {
    this.#onlyText = !this.#ignoreCase
    this.#anchored = false
    this.#pieces = []
    let rest = source
    for (let flags = FLAGS.exec(rest); flags; flags = FLAGS.exec(rest)) {
      if (!this.#flags(flags, rest)) return undefined
      rest = rest.slice(flags[0].length)
    }
    if (rest.startsWith('^') && !this.#multiline) {
      this.#anchored = true
      this.#runAt = 'start'
      rest = rest.slice(1)
      if (QUANTIFIER.test(rest)) return undefined
    }
    while (rest !== '' && !rest.startsWith('|')) {
      const step = this.#step(rest)
      if (step === undefined) return undefined
      rest = rest.slice(step)
    }
    this.#endRun()
    this.found.push(this.#best())
    return rest
  }

  #best(): Literal | undefined {
    if (this.#onlyText) {
      const text = this.#pieces[0]?.text ?? ''
      return { text, at: this.#anchored ? 'start' : 'anywhere', ignoreCase: false, complete: true }
    }
    const start = this.#pieces.find(piece => piece.at === 'start')
    const longest = this.#pieces.toSorted((a, b) => b.text.length - a.text.length)[0]
    const best = start && !start.ignoreCase ? start : longest
    return best && { ...best, complete: false }
  }

  /** How many characters of `rest` it has read. */
  #step(rest: string): number | undefined {
    const flags = FLAGS.exec(rest)
    if (flags) return this.#flags(flags, rest) ? flags[0].length : undefined
    if (rest.startsWith(')') || rest.startsWith('\\Q')) return undefined
    if (rest.startsWith('(')) return this.#skip(groupLength(rest), rest)
    if (rest.startsWith('[')) return this.#skip(classLength(rest), rest)
    if (/^[.^$]/.test(rest)) return this.#skip(1, rest)
    if (rest.startsWith('\\') && /^\\[dDwWsSbB]/.test(rest)) return this.#skip(2, rest)
    const escaped = /^\\[^\w\s]/.test(rest)
    if (rest.startsWith('\\') && !escaped) return undefined
    const character = String.fromCodePoint(rest.codePointAt(escaped ? 1 : 0)!)
    return this.#letter(character, (escaped ? 1 : 0) + character.length, rest)
  }

  /** False where a flag is taken back, or a quantifier follows, which belongs to what stands before the flags. */
  #flags(flags: RegExpExecArray, rest: string): boolean {
    this.#endRun()
    this.#onlyText = false
    if (flags[1]!.includes('i')) this.#ignoreCase = true
    if (flags[1]!.includes('m')) this.#multiline = true
    return !flags[0].includes('-') && !QUANTIFIER.test(rest.slice(flags[0].length))
  }

  #letter(character: string, length: number, rest: string): number {
    const quantifier = QUANTIFIER.exec(rest.slice(length))?.[0] ?? ''
    const optional = /^(?:[*?]|\{0)/.test(quantifier)
    const usable = !this.#ignoreCase || character.charCodeAt(0) < 128
    if (quantifier !== '' || !usable) this.#onlyText = false
    if (usable && !optional) this.#run += this.#ignoreCase ? character.toLowerCase() : character
    if (quantifier !== '' || !usable) this.#endRun()
    return length + quantifier.length
  }

  #skip(length: number | undefined, rest: string): number | undefined {
    if (length === undefined) return undefined
    this.#onlyText = false
    this.#endRun()
    return length + (QUANTIFIER.exec(rest.slice(length))?.[0].length ?? 0)
  }

  #endRun(): void {
    if (this.#run !== '') this.#pieces.push({ text: this.#run, at: this.#runAt, ignoreCase: this.#ignoreCase })
    this.#run = ''
    this.#runAt = 'anywhere'
  }
}

const groupLength = (rest: string): number | undefined => {
  // Flags inside a group end with it; they are not read, so what they do to the pattern cannot matter.
  let depth = 0
  for (let index = 0; index < rest.length; index++) {
    const character = rest[index]
    if (character === '\\') {
      if (rest[index + 1] === 'Q') return undefined
      index += 1
    } else if (character === '[') {
      const length = classLength(rest.slice(index))
      if (length === undefined) return undefined
      index += length - 1
    } else if (character === '(') {
      depth += 1
    } else if (character === ')') {
      depth -= 1
      if (depth === 0) return index + 1
    }
  }
  return undefined
}

const CLASS = /^\[\^?\]?(?:\[:\^?\w+:\]|\\[\s\S]|[^\]\\])*\]/

const classLength = (rest: string): number | undefined => CLASS.exec(rest)?.[0].length
