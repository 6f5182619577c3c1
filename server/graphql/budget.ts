import type { FieldNode, FragmentDefinitionNode, GraphQLResolveInfo, SelectionNode } from 'graphql'
import { Kind } from 'graphql'
import { TidingsError } from '../../shared/errors.ts'
import type { Row } from '../mango/documents.ts'
import type { Meter } from '../mango/meter.ts'
import type { Json } from '../mango/selector.ts'
import { Pace } from './pace.ts'

/**
 * What one request may spend over all its lists and aliases. A list of 10,000 rows with all scalar fields and related
 * rows fits well; memory grows by at most 100 MB.
 */
export const BUDGET = {
  /** Rows loaded, each counted once: five lists of 10,000. A row takes 500 to 1,500 bytes. */
  rows: 50_000,
  /** Characters in the loaded rows: 10,000 webhooks have URLs of at most 2,048. */
  characters: 40_000_000,
  /**
   * Fields answered, each of a microsecond and 50 bytes; a row that is answered in several places counts in each.
   * 10,000 rows may have 20 fields and three related rows or lists.
   */
  values: 1_400_000,
  /** Bytes of the answer: 10,000 rows of 2,400 each. */
  bytes: 24 * 1024 * 1024,
  /** Instructions of all patterns together: a common one has 10 to 50, and takes one step each a character. */
  instructions: 10_000,
  /** Milliseconds of matching and sorting in TypeScript: a million rows with a pattern take about 3 s. */
  matchingMs: 10_000,
  /**
   * Milliseconds from the request's start to its answer. A mutation may wait for an endpoint, and has no such limit.
   */
  timeMs: 15_000,
}

/** What may be answered in one piece, without other work in between: about 50 ms. */
export const BUDGET_HERE = { ...BUDGET, values: 150_000, bytes: 4 * 1024 * 1024 }

/** What a small request spends at most, and the statements that it sends. */
const SMALL: Spent = {
  rows: 500,
  characters: 500_000,
  values: 20_000,
  bytes: 200_000,
  instructions: 100,
  // Time tells nothing: a small one that shares the processor takes several times its own.
  matchingMs: Number.POSITIVE_INFINITY,
}
const SMALL_STATEMENTS = 15

/** What is answered of a list in one piece: about 10 ms. */
const VALUES_AT_ONCE = 20_000

/** Patterns with more instructions may take milliseconds for a row. */
const HEAVY_INSTRUCTIONS = 300

/** How many ids or names in a list take as much memory as a row. */
const ENTRIES_A_ROW = 10
/** The number of fields that take as much memory as a row of a list, and as another object, which may be waited for. */
const ROW_VALUES = 5
const OBJECT_VALUES = 35
/** How the limit of `values` counts, as the schema says too. */
const COUNTS = { row: `a row of a list counts as ${ROW_VALUES}`, object: `another object as ${OBJECT_VALUES}` }
export const COUNTED_AS = `${COUNTS.row}, ${COUNTS.object}, everywhere it appears`

type Limit = keyof typeof BUDGET

const REFUSALS: Record<Limit, { code: 'QUERY_TOO_COMPLEX' | 'RESULT_TOO_LARGE'; what: string; instead: string }> = {
  rows: {
    code: 'RESULT_TOO_LARGE',
    what: `loads more than # rows (${ENTRIES_A_ROW} ids or names in a list count as one)`,
    instead: 'Give its lists smaller limits, or page through them with after in several requests.',
  },
  characters: {
    code: 'RESULT_TOO_LARGE',
    what: 'loads rows with more than # characters',
    instead: 'Give its lists smaller limits, or page through them with after in several requests.',
  },
  values: {
    code: 'RESULT_TOO_LARGE',
    what: `answers more than # fields (${COUNTED_AS})`,
    instead: 'Give its lists smaller limits, or query what many rows share in a separate request.',
  },
  bytes: {
    code: 'RESULT_TOO_LARGE',
    what: 'answers more than # bytes',
    instead: 'Give its lists smaller limits, or ask for fewer fields.',
  },
  instructions: {
    code: 'QUERY_TOO_COMPLEX',
    what: 'has patterns with more than # instructions in total',
    instead: 'Use fewer or simpler patterns, or several requests.',
  },
  matchingMs: {
    code: 'QUERY_TOO_COMPLEX',
    what: 'spends more than # ms on matching and sorting that the database cannot do',
    instead: 'Add a condition on an indexed field, or simplify its patterns.',
  },
  timeMs: {
    code: 'QUERY_TOO_COMPLEX',
    what: 'takes more than # ms',
    instead: 'Add a condition on an indexed field, or ask for less at once.',
  },
}

/** The error that names the exceeded limit and what would fit. */
export const overspent = (limit: Limit, budget = BUDGET): TidingsError => {
  const { code, what, instead } = REFUSALS[limit]
  const most = budget[limit]
  return new TidingsError(code, `The request ${what.replace('#', most.toLocaleString('en'))}. ${instead}`, {
    limit: most,
    budget: limit,
  })
}

type Spent = Record<Exclude<Limit, 'timeMs'>, number>
/** The rows of a list as the executor takes them. */
type Answered = Row[] | AsyncIterable<Row>
type Weight = { values: number; bytes: number }

/** The remaining budget of one request. Spending more than is left ends the whole request. */
export class Budget implements Meter {
  readonly #limits: typeof BUDGET
  readonly #spent: Spent = { rows: 0, characters: 0, values: 0, bytes: 0, instructions: 0, matchingMs: 0 }
  readonly #weights = new Map<FieldNode, Weight>()
  readonly #ended = Promise.withResolvers<Error>()
  readonly #pace = new Pace()
  #end: Error | undefined
  #matchedAt = 0
  /** Thrown where execution stops for good, so that nothing more runs and 10,000 rows make no 10,000 errors. */
  readonly #never = new Promise<never>(() => {})
  #timer: NodeJS.Timeout | undefined
  /** Called when the patterns of the request may take long. Matching begins when the promise resolves. */
  onHeavy: (() => Promise<void>) | undefined
  #turn: Promise<void> | undefined
  /** Called once the request has spent more than a small one does. */
  onLarge: (() => void) | undefined
  #statements = 0

  constructor(limits = BUDGET) {
    this.#limits = limits
  }

  /** Resolves with the reason if the request ends before it is answered. */
  get ended(): Promise<Error> {
    return this.#ended.promise
  }

  get isOver(): boolean {
    return this.#end !== undefined
  }

  /** Throws if the request is over, so that it sends no further statement. */
  proceed(): void {
    if (this.#end) throw this.#end
    this.#statements += 1
    if (this.#statements > SMALL_STATEMENTS) this.#becomeLarge()
  }

  /** Ends the request, because it spent too much or nobody waits for it. */
  end(reason: Error): void {
    if (this.#end) return
    this.#end = reason
    this.#ended.resolve(reason)
  }

  /** As `within`, and within its time. */
  async withinTime<T>(work: () => T | Promise<T>): Promise<T> {
    this.#timer = setTimeout(() => this.end(overspent('timeMs', this.#limits)), this.#limits.timeMs)
    return this.within(work)
  }

  /**
   * Runs a request. Resolves to the result of `work`, or throws as soon as the budget is exceeded, whatever `work`
   * still waits for.
   */
  async within<T>(work: () => T | Promise<T>): Promise<T> {
    try {
      const result = await Promise.race([work(), this.#ended.promise])
      if (this.#end) throw this.#end
      return result as T
    } finally {
      clearTimeout(this.#timer)
      this.#pace.end()
    }
  }

  /** Throws when the request is over, so that a search ends where it waits, with its transaction. */
  pause(): Promise<void> {
    const ended = this.#ended.promise.then(reason => {
      throw reason
    })
    return Promise.race([this.#pace.nextTurn(), ended])
  }

  load(rows: readonly Row[]): void {
    this.#spend('rows', rows.length)
    let characters = 0
    for (const row of rows) {
      for (const name in row) {
        const value = row[name]
        if (typeof value === 'string') characters += value.length
      }
    }
    this.#spend('characters', characters)
  }

  /** Spends a loaded list of ids or names. */
  loadEntries(entries: readonly string[]): void {
    this.#spend('rows', entries.length / ENTRIES_A_ROW)
    this.#spend(
      'characters',
      entries.reduce((sum, { length }) => sum + length, 0),
    )
  }

  compile(instructions: number): void {
    const before = this.#spent.instructions
    this.#spend('instructions', instructions)
    if (before <= HEAVY_INSTRUCTIONS && this.#spent.instructions > HEAVY_INSTRUCTIONS) this.#turn = this.onHeavy?.()
  }

  turn(): Promise<void> | undefined {
    return this.#turn
  }

  match(ms: number): void {
    this.#matchedAt = performance.now()
    this.#spend('matchingMs', ms)
  }

  look(): void {
    if (this.#spent.matchingMs + performance.now() - this.#matchedAt < BUDGET.matchingMs) return
    this.#spend('matchingMs', BUDGET.matchingMs)
  }

  /** Spends the characters of an answered text. */
  text(length: number): void {
    // One error is enough for all remaining fields.
    if (!this.#end) this.#spend('bytes', length)
  }

  /** Spends an answered list of ids or names. */
  list(read: Json | Promise<Json>): Json | Promise<Json> {
    return this.#unlessOver(read, list => {
      const { length } = list as string[]
      this.#spend('values', length)
      this.#spend('bytes', length * AROUND_BYTES)
    })
  }

  /**
   * Spends the rows of a list before their fields are answered, and has them answered in turns with other requests.
   *
   * @param loadAhead loads what their fields need
   */
  answer(
    info: GraphQLResolveInfo,
    listed: Row[] | Promise<Row[]>,
    loadAhead: (rows: Row[]) => Promise<void> | undefined = () => undefined,
  ): Answered | Promise<Answered> {
    const counted = this.#unlessOver(listed, ({ length }) => {
      const { values, bytes } = this.#weightOf(info)
      this.#spend('values', length * (values + ROW_VALUES))
      this.#spend('bytes', length * bytes)
    })
    const inTurns = (rows: Row[]): Answered | Promise<Answered> => {
      if (rows.length * (this.#weightOf(info).values + ROW_VALUES) > VALUES_AT_ONCE) return this.#inTurns(rows)
      return this.#pace.turn()?.then(() => rows) ?? rows
    }
    if (!(counted instanceof Promise)) return inTurns(counted)
    return counted.then(rows => loadAhead(rows)?.then(() => inTurns(rows)) ?? inTurns(rows))
  }

  /** An item is a promise only where others have their turn before it. */
  #inTurns(rows: Row[]): AsyncIterable<Row> {
    const items = rows.values()
    const next = () => this.#pace.turn()?.then(() => items.next()) ?? items.next()
    return { [Symbol.asyncIterator]: () => ({ next }) as AsyncIterator<Row> }
  }

  /** Calls back once all lists that have come are answered, so that one statement loads what all their rows need. */
  loadTogether(load: () => void): void {
    this.#pace.afterTurns(load)
  }

  /** What was read; or, once the request is over, what never comes. */
  #unlessOver<T>(read: T | Promise<T>, count: (found: T) => void): T | Promise<T> {
    const counted = (found: T): T | Promise<T> => {
      if (this.#end) return this.#never
      try {
        count(found)
      } catch {
        return this.#never
      }
      return found
    }
    if (!(read instanceof Promise)) return counted(read)
    return read.then(counted, error => {
      if (this.#end) return this.#never
      throw error
    })
  }

  #spend(limit: keyof Spent, amount: number): void {
    const spent = this.#spent[limit] + amount
    this.#spent[limit] = spent
    if (spent > SMALL[limit]) this.#becomeLarge()
    if (spent <= this.#limits[limit] && !this.#end) return
    if (this.#end) throw this.#end
    const error = overspent(limit, this.#limits)
    this.end(error)
    throw error
  }

  #becomeLarge(): void {
    this.onLarge?.()
    this.onLarge = undefined
  }

  /** The cost of a row of a list, without the rows of lists below it. */
  #weightOf({ fieldNodes, fragments }: GraphQLResolveInfo): Weight {
    const known = this.#weights.get(fieldNodes[0]!)
    if (known) return known
    const selections = fieldNodes.flatMap(node => node.selectionSet?.selections ?? [])
    const weight = weigh(selections, fragments, new Map())
    this.#weights.set(fieldNodes[0]!, weight)
    return weight
  }
}

/** Quotes, a colon, a comma, and a value of one character. */
const AROUND_BYTES = 5

const weigh = (
  selections: readonly SelectionNode[],
  fragments: Readonly<Record<string, FragmentDefinitionNode>>,
  known: Map<string, Weight>,
): Weight => {
  const total = { values: 0, bytes: 0 }
  const add = ({ values, bytes }: Weight) => {
    total.values += values
    total.bytes += bytes
  }
  for (const selection of selections) {
    if (selection.kind === Kind.FIELD) {
      add({
        values: selection.selectionSet ? OBJECT_VALUES : 1,
        bytes: (selection.alias ?? selection.name).value.length + AROUND_BYTES,
      })
    }
    if (selection.kind !== Kind.FRAGMENT_SPREAD) {
      if (selection.selectionSet) add(weigh(selection.selectionSet.selections, fragments, known))
      continue
    }
    const name = selection.name.value
    const weight = known.get(name) ?? weigh(fragments[name]!.selectionSet.selections, fragments, known)
    known.set(name, weight)
    add(weight)
  }
  return total
}
