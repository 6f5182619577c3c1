/**
 * Derives from a pattern (RE2 syntax) what a database can search for instead: texts that every match contains, and a
 * regular expression of fixed length that every match satisfies. Parts that it does not understand are left out, so the
 * result may match too much, never too little.
 */
export type Prefilter = {
  /** Every matching text contains one of these; empty if nothing is known. */
  literals: Literal[]
  regex: PrefilterRegex | undefined
}

export type Literal = {
  text: string
  /** `whole`: the matching text contains nothing else. */
  at: 'start' | 'anywhere' | 'whole'
  /** `text` is lower-case ASCII, and appears in the matching text in any case. */
  ignoreCase: boolean
  /** The literal is sufficient: any text that contains it matches. */
  complete: boolean
}

/** Every matching text matches this expression, which all engines interpret alike and without backtracking. */
export type PrefilterRegex = {
  /** A sequence of ASCII classes, with or without `\A` and `\z`, or alternatives of such sequences. */
  source: string
  /** The expression is sufficient: any text that matches it matches the pattern. */
  complete: boolean
}

export const prefilterOf = (source: string): Prefilter => {
  const alternatives = new Reader(source).read()?.map(trimmed) ?? []
  const literals = alternatives.map(literalOf)
  const regexes = alternatives.map(regexOf)
  return {
    literals: literals.every(found => found !== undefined) ? literals : [],
    regex:
      regexes.length > 0 && regexes.every(found => found !== undefined)
        ? { source: regexes.map(regex => regex.source).join('|'), complete: regexes.every(regex => regex.complete) }
        : undefined,
  }
}

/** A character, or the inside of a class in ASCII. */
type Charset = { letter: string; ignoreCase: boolean } | { within: string }
/**
 * How often a character of a set occurs; no set: a part that is not understood, which may match any characters or none.
 */
type Item = { set: Charset | undefined; min: number; max: number }
/** `start`, `end`: the match begins or ends with the text. */
type Alternative = { start: boolean; end: boolean; items: Item[] }
/** Adjacent characters; `first`, `last`: nothing comes before or after them. */
type Run = { sets: Charset[]; first: boolean; last: boolean }

/** At the open ends of a match, repetitions beyond the minimum can be left out. */
const trimmed = ({ start, end, items }: Alternative): Alternative => {
  const begun = start ? items : trimmedStart(items)
  return { start, end, items: end ? begun : trimmedStart(begun.toReversed()).toReversed() }
}

const trimmedStart = (items: Item[]): Item[] => {
  const [item, ...rest] = items
  if (!item?.set || item.min === item.max) return items
  return item.min === 0 ? trimmedStart(rest) : [{ ...item, max: item.min }, ...rest]
}

const runsOf = (items: Item[]): Run[] => {
  const runs: Run[] = []
  let run: Run = { sets: [], first: true, last: false }
  for (const { set, min, max } of items) {
    const copies = set ? Array<Charset>(min).fill(set) : []
    run.sets.push(...copies)
    if (set && min === max) continue
    runs.push(run)
    run = { sets: [...copies], first: false, last: false }
  }
  return [...runs, { ...run, last: true }]
}

/** `whole`: the alternative has nothing else. */
type Piece = { sets: Charset[]; atStart: boolean; atEnd: boolean; whole: boolean }

/** An alternative's characters in adjacent runs. */
const piecesOf = ({ start, end, items }: Alternative, together: (a: Charset, b: Charset) => boolean): Piece[] => {
  const runs = runsOf(items)
  return runs.flatMap(({ sets, first, last }) => {
    const stretches: { from: number; sets: Charset[] }[] = [{ from: 0, sets: sets.slice(0, 1) }]
    for (const [index, set] of sets.entries()) {
      if (index === 0) continue
      if (together(sets[index - 1]!, set)) stretches.at(-1)!.sets.push(set)
      else stretches.push({ from: index, sets: [set] })
    }
    return stretches.map(stretch => ({
      sets: stretch.sets,
      atStart: start && first && stretch.from === 0,
      atEnd: end && last && stretch.from + stretch.sets.length === sets.length,
      whole: runs.length === 1 && stretches.length === 1,
    }))
  })
}

const longest = (pieces: Piece[]): Piece | undefined =>
  pieces.toSorted((a, b) => b.sets.length - a.sets.length || Number(b.atStart) - Number(a.atStart))[0]

const literalOf = (alternative: Alternative): Literal | undefined => {
  const isLetter = (set: Charset) => 'letter' in set
  const pieces = piecesOf(
    alternative,
    (a, b) => 'letter' in a && 'letter' in b && a.ignoreCase === b.ignoreCase,
  ).filter(({ sets }) => sets.every(isLetter))
  const piece = pieces.find(({ sets, atStart }) => atStart && sets.length > 0 && !ignoresCase(sets)) ?? longest(pieces)
  if (!piece) return undefined
  const { sets, atStart, atEnd, whole } = piece
  const ignoreCase = ignoresCase(sets)
  const text = sets.map(set => (set as { letter: string }).letter).join('')
  if (whole && atStart && atEnd && !ignoreCase) return { text, at: 'whole', ignoreCase, complete: true }
  const complete = whole && !alternative.end && !ignoreCase
  if (text === '' && !complete) return undefined
  return { text, at: atStart ? 'start' : 'anywhere', ignoreCase, complete }
}

const ignoresCase = ([set]: Charset[]): boolean => set !== undefined && 'letter' in set && set.ignoreCase

const regexOf = (alternative: Alternative): PrefilterRegex | undefined => {
  const isPlain = (set: Charset) => 'within' in set || (!set.ignoreCase && isAscii(set.letter))
  const pieces = piecesOf(alternative, (a, b) => isPlain(a) && isPlain(b)).filter(({ sets }) => sets.every(isPlain))
  const piece = longest(pieces)
  if (!piece) return undefined
  const { sets, atStart, atEnd, whole } = piece
  const classes = sets.map(set => `[${'within' in set ? set.within : escaped(set.letter)}]`).join('')
  const source = `${atStart ? '\\A' : ''}${classes}${atEnd ? '\\z' : ''}`
  return source === '' ? undefined : { source, complete: whole }
}

/** Longer expressions would not narrow the search further. */
const MOST_COPIES = 32
const QUANTIFIER = /^(?:[*+?]|\{\d+(?:,\d*)?\})\??/
const FLAGS = /^\(\?([imsU]*)(?:-[imsU]*)?\)/

class Reader {
  readonly #source: string
  #ignoreCase = false
  #multiline = false
  #dotAll = false

  constructor(source: string) {
    this.#source = source
  }

  /** Undefined if a part of the pattern makes the rest uncertain. */
  read(): Alternative[] | undefined {
    const alternatives: Alternative[] = []
    let rest: string | undefined = this.#source
    while (rest !== undefined) {
      const alternative: Alternative = { start: false, end: false, items: [] }
      const after = this.#alternative(rest, alternative)
      if (after === undefined) return undefined
      alternatives.push(alternative)
      rest = after.startsWith('|') ? after.slice(1) : undefined
    }
    return alternatives
  }

  /** The rest after the alternative at the beginning of `source`. */
  #alternative(source: string, alternative: Alternative): string | undefined {
    let rest = source
    for (let flags = FLAGS.exec(rest); flags; flags = FLAGS.exec(rest)) {
      if (!this.#flags(flags, rest)) return undefined
      rest = rest.slice(flags[0].length)
    }
    if (rest.startsWith('^') && !this.#multiline) {
      alternative.start = true
      rest = rest.slice(1)
      if (QUANTIFIER.test(rest)) return undefined
    }
    while (rest !== '' && !rest.startsWith('|')) {
      if (/^\$(?:\||$)/.test(rest) && !this.#multiline) {
        alternative.end = true
        return rest.slice(1)
      }
      const length = this.#item(rest, alternative.items)
      if (length === undefined) return undefined
      rest = rest.slice(length)
    }
    return rest
  }

  /** Adds the item at the beginning of `rest`, and returns its length. */
  #item(rest: string, items: Item[]): number | undefined {
    const flags = FLAGS.exec(rest)
    if (flags) {
      items.push(UNKNOWN)
      return this.#flags(flags, rest) ? flags[0].length : undefined
    }
    const token = this.#token(rest)
    if (!token) return undefined
    const quantifier = QUANTIFIER.exec(rest.slice(token.length))?.[0] ?? ''
    items.push(token.set ? repeated(token.set, quantifier) : UNKNOWN)
    return token.length + quantifier.length
  }

  #token(rest: string): { set?: Charset | undefined; length: number } | undefined {
    if (rest.startsWith(')') || rest.startsWith('\\Q')) return undefined
    if (rest.startsWith('(')) return unread(groupLength(rest))
    if (rest.startsWith('[')) {
      const length = classLength(rest)
      return length === undefined ? undefined : { set: this.#class(withinClass(rest.slice(1, length - 1))), length }
    }
    if (rest.startsWith('.')) return { set: { within: this.#dotAll ? ANY : NO_NEWLINE }, length: 1 }
    if (/^[$^]/.test(rest)) return unread(1)
    if (/^\\[DWSbB]/.test(rest)) return unread(2)
    if (/^\\[dws]/.test(rest)) return { set: this.#class(shorthands[rest[1]!]), length: 2 }
    const isEscaped = /^\\[^\w\s]/.test(rest)
    if (rest.startsWith('\\') && !isEscaped) return undefined
    const character = String.fromCodePoint(rest.codePointAt(isEscaped ? 1 : 0)!)
    return { set: this.#letter(character), length: (isEscaped ? 1 : 0) + character.length }
  }

  #letter(character: string): Charset | undefined {
    if (!this.#ignoreCase) return { letter: character, ignoreCase: false }
    return isAscii(character) ? { letter: character.toLowerCase(), ignoreCase: true } : undefined
  }

  #class(within: string | undefined): Charset | undefined {
    return within === undefined || this.#ignoreCase ? undefined : { within }
  }

  /** False if a flag is switched off, or a quantifier follows, which belongs to the item before the flags. */
  #flags(flags: RegExpExecArray, rest: string): boolean {
    if (flags[1]!.includes('i')) this.#ignoreCase = true
    if (flags[1]!.includes('m')) this.#multiline = true
    if (flags[1]!.includes('s')) this.#dotAll = true
    return !flags[0].includes('-') && !QUANTIFIER.test(rest.slice(flags[0].length))
  }
}

const MANY = Number.POSITIVE_INFINITY
const UNKNOWN: Item = { set: undefined, min: 0, max: MANY }

const unread = (length: number | undefined) => (length === undefined ? undefined : { length })

const repeated = (set: Charset, quantifier: string): Item => {
  const [min, max] = timesOf(quantifier)
  return min > MOST_COPIES ? { set, min: MOST_COPIES, max: MANY } : { set, min, max }
}

const timesOf = (quantifier: string): [number, number] => {
  if (quantifier === '') return [1, 1]
  if (quantifier.startsWith('*')) return [0, MANY]
  if (quantifier.startsWith('+')) return [1, MANY]
  if (quantifier.startsWith('?')) return [0, 1]
  const [, min, comma, max] = /^\{(\d+)(,?)(\d*)/.exec(quantifier)!
  if (comma === '') return [Number(min), Number(min)]
  return [Number(min), max === '' ? MANY : Number(max)]
}

const isAscii = (character: string): boolean => character.charCodeAt(0) < 128

const escaped = (character: string): string => `\\x${character.charCodeAt(0).toString(16).padStart(2, '0')}`

const ANY = '\\s\\S'
const NO_NEWLINE = '^\\x0a'
const shorthands: Record<string, string> = {
  d: '\\x30-\\x39',
  w: '\\x30-\\x39\\x41-\\x5a\\x5f\\x61-\\x7a',
  s: '\\x09\\x0a\\x0c\\x0d\\x20',
}

const CLASS_PART = /^(?:\\([dws])|(\\[!-/:-@[-`{-~]|[ -,./-Z_-~])(?:-(\\[!-/:-@[-`{-~]|[ -,./-Z_-~]))?)/

/** The content of a character class; undefined unless it has only ASCII characters and ranges. */
const withinClass = (inner: string): string | undefined => {
  const negation = inner.startsWith('^') ? '^' : ''
  let found = ''
  let rest = inner.slice(negation.length)
  while (rest !== '') {
    const part = rest === '-' ? ['-', undefined, '-'] : CLASS_PART.exec(rest)
    if (!part) return undefined
    const [whole, shorthand, from, to] = part
    if (shorthand) found += shorthands[shorthand]
    else found += to === undefined ? escaped(from!.at(-1)!) : `${escaped(from!.at(-1)!)}-${escaped(to.at(-1)!)}`
    rest = rest.slice(whole!.length)
  }
  return found === '' ? undefined : negation + found
}

const groupLength = (rest: string): number | undefined => {
  // Flags inside a group end with it. The group is not read, so they do not matter.
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
