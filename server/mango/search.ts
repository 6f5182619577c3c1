import type { Knex } from 'knex'
import { type Sql, rows as select } from '../database/connect.ts'
import { dialectOf, STATEMENT_LIMITS } from '../database/dialect.ts'
import type { Fragment } from '../database/fragment.ts'
import { bind } from './bind.ts'
import { addNeedsOf, addPath, compareRaw, documentsOf, fromColumn, type Needs, type Row } from './documents.ts'
import { badQuery, MangoError } from './error.ts'
import { compare, read } from './matcher.ts'
import { Matching } from './matching.ts'
import { MAX_ROWS, type Page, parsePage } from './page.ts'
import { alternativesOf, type Join, type Plan, plan } from './plan.ts'
import type { Explain, MangoQuery, Options } from './query.ts'
import type { Resource, Source, Summed, Sums, SumsAsked, Visible } from './resource.ts'
import { type Json, type Node, parseSelector } from './selector.ts'
import { beyond, orderBy, ownKey, parseKeys, parseSort, placeOf, type SortKey, type SortValue } from './sort.ts'
import { sourceOf } from './source.ts'
import { askOfSums, type Range, restOf } from './sums.ts'

/** The most rows to skip if TypeScript matches or sorts. */
const MAX_SKIP = 20_000
/** Batches grow, so that an early match is cheap and a full scan needs few statements. */
const BATCH_SIZES = [500, 5_000]
/** How many rows are examined first. */
const NEAR = 1_000
/** A short list reads at first as many rows as it needs, or this many. */
const FEWEST = 50
/** The most ids to select from all pieces of a query. */
const MOST_OF_PIECES = 100_000

/** `by`: counts rows by these fields instead of listing them. */
type Key = { unique: string; parent?: string; by?: readonly string[] }
/** `isFirst`: the statement starts at the relation and looks up its own rows. */
type Joined = Join & { isFirst?: true }
/** The number of rows with equal values in the counted fields; `startMs`: the start of their first span of time. */
export type Group = { values: Json[]; count: number; startMs?: number }
type Values = Json[]
type Hit = { row: Row; values: Values }

/**
 * The execution of one query: SQL narrows, TypeScript matches and sorts what SQL cannot. Rows are read in batches by
 * keyset pagination, so that memory does not depend on their number.
 */
export class Search {
  readonly #db: Sql
  readonly #resource: Resource
  readonly #visible: Visible
  readonly #source: Source
  readonly #matcher: Matching
  readonly #asked: boolean
  readonly #divide: () => Promise<Visible[] | undefined>
  readonly #plan: Plan
  /** Plans for alternatives of the selector, which together equal it; empty if it has only one. */
  readonly #alternatives: Plan[]
  readonly #keys: SortKey[]
  /** The kept counts and what to ask of them, where they can answer. */
  readonly #sums: { kept: Sums; asked: SumsAsked } | undefined
  /** The order of a full scan: that of the primary key or an index. */
  readonly #scanKeys: SortKey[]
  readonly #sortedInSql: boolean
  readonly #needs: Needs = new Map()
  readonly #page: Page
  readonly #text: (value: string) => Fragment
  /** The last row seen, if the caller gave its values in the sort fields. */
  readonly #place: Values | undefined
  /** The first statement that selected rows; compiled again only for `explain`. */
  #first: (() => Fragment) | undefined
  /** The visible rows in parts. */
  #parts: Visible[] | undefined
  #statements = 0
  #rowsExamined = 0

  constructor(
    db: Sql,
    resource: Resource,
    query: MangoQuery,
    visible: Visible,
    options: Options,
    { unique, parent, by }: Key,
  ) {
    this.#db = db
    this.#resource = resource
    this.#visible = visible
    this.#source = sourceOf(db, options)
    this.#asked = options.explain ?? false
    this.#divide = options.parts ?? (async () => undefined)
    this.#matcher = new Matching(this.#source.meter)
    const node = bind(parseSelector(query.selector, this.#matcher), resource)
    const planOf = (node: Node) => plan(node, resource, dialectOf(db), this.#source.visible)
    this.#plan = planOf(node)
    this.#alternatives = alternativesOf(node, resource).map(planOf)
    const { columnAt } = this.#plan
    this.#keys = by ? parseKeys(by, 'by', resource, columnAt) : parseSort(query.sort, resource, unique, columnAt)
    const kept = by && this.#source.visible(resource, resource.table) === undefined ? resource.sums?.() : undefined
    const asked = kept && askOfSums(node, this.#keys, resource, kept)
    this.#sums = kept && asked && { kept, asked }
    this.#scanKeys = [parent, unique].filter(name => name !== undefined).map(name => ownKey(resource, name, 'asc'))
    this.#sortedInSql = this.#keys.every(key => key.column !== undefined)
    this.#text = dialectOf(db).collated
    this.#page = parsePage(query, resource)
    const { after, afterValues } = this.#page
    if (after && afterValues) this.#place = placeOf(this.#keys, query.sort?.length ?? 0, after, afterValues)
    if (this.#plan.residual) addNeedsOf(this.#needs, this.#plan.residual, resource)
    for (const { path, column } of this.#keys) if (!column) addPath(this.#needs, path, resource)
    if (this.#page.skip > MAX_SKIP && !this.#inSql) {
      throw badQuery(
        'skip',
        `must be at most ${MAX_SKIP} if SQL alone cannot answer; page with after, the id of the last row seen`,
      )
    }
  }

  get #inSql(): boolean {
    return this.#plan.residual === undefined && this.#sortedInSql
  }

  /** One more than the limit, to detect a list that is too long. */
  get #wanted(): number {
    return this.#page.limit ?? MAX_ROWS + 1
  }

  async all(): Promise<Row[]> {
    const start = await this.#start()
    if (this.#selectsNothing) return []
    this.#parts = await this.#divide()
    if (this.#parts?.length === 0) return []
    if (this.#inSql) return this.#checked(await this.#ordered(start, this.#wanted, this.#page.skip))
    const hits = this.#sortedInSql ? await this.#inOrder(start) : await this.#inAnyOrder(start)
    return this.#checked(hits.slice(this.#page.skip, this.#page.skip + this.#wanted).map(hit => hit.row))
  }

  /** Groups of all matching rows, in SQL if it can express selector and fields. */
  async counts(): Promise<Group[]> {
    const groups = await this.#groups()
    if (this.#keys.length === 0 && groups.length === 0) return [{ values: [], count: 0 }]
    if (this.#keys.some(({ bucket }) => bucket !== undefined)) return this.#folded(groups)
    return groups.map(({ values, count }) => ({
      values: values.map((value, index) => shownValue(this.#keys[index]!, value)),
      count,
    }))
  }

  /** Counts the times of each span together. */
  #folded(groups: Group[]): Group[] {
    const first = this.#keys.findIndex(({ bucket }) => bucket !== undefined)
    const folded = new Map<string, Group>()
    for (const { values, count } of groups) {
      const starts = values.map((value, index) => spanOf(this.#keys[index]!, value))
      const shown = values.map((value, index) => starts[index]?.text ?? shownValue(this.#keys[index]!, value))
      const group = addTo(folded, shown, count)
      if (starts[first] !== undefined) group.startMs = starts[first].startMs
    }
    if (folded.size > MAX_ROWS) throw tooManyGroups()
    return [...folded.values()]
  }

  async #groups(): Promise<Group[]> {
    if (this.#plan.where === false) return []
    if (this.#inSql) this.#parts = await this.#divide()
    if (this.#parts?.length === 0) return []
    return this.#inSql ? this.#groupsInSql() : this.#groupsOf(this.#pass(undefined))
  }

  async #groupsInSql(): Promise<Group[]> {
    const columns = this.#keys.map(({ column, bucket }) =>
      bucket === undefined ? column!.sql : dialectOf(this.#db).quotient(column!.sql, bucket.spanMs),
    )
    const most = this.#keys.some(({ bucket }) => bucket !== undefined) ? MOST_SPANS : MAX_ROWS
    const counted = (visible: Visible): Knex.QueryBuilder => {
      const builder = this.#builder(undefined, visible).clearSelect().select(this.#db.raw('COUNT(*) AS number'))
      for (const [index, column] of columns.entries()) builder.select(this.#db.raw(`${column} AS mango_by_${index}`))
      return columns.length > 0 ? builder.groupByRaw(columns.join(', ')).limit(most + 1) : builder
    }
    const summed = await this.#summed()
    const parts = summed?.rest ?? (this.#parts && this.#fit(this.#parts, [this.#plan]) ? this.#parts : [this.#visible])
    const found =
      parts.length === 0 ? [] : await this.#select(this.#union(parts.map(part => fragmentOf(counted(part)))))
    const groups = new Map<string, Group>()
    const add = (raw: Json[], count: number): void => {
      const values = this.#keys.map(({ bucket }, index) => {
        const value = raw[index]!
        return bucket === undefined || value === null ? value : Number(value) * bucket.spanMs
      })
      addTo(groups, values, count)
    }
    for (const { values, count } of summed?.groups ?? []) add(values, count)
    for (const row of found) {
      const count = Number(row.number)
      // Without a key there is a row for each part, also where nothing was counted.
      if (count > 0 || this.#keys.length > 0)
        add(
          columns.map((_, index) => row[`mango_by_${index}`] as Json),
          count,
        )
    }
    if (groups.size > most) throw tooManyGroups()
    return [...groups.values()]
  }

  /** The counts that are kept, and what is left to be counted. Undefined where that would save little. */
  async #summed(): Promise<(Summed & { rest: Visible[] }) | undefined> {
    if (this.#sums === undefined) return undefined
    const { kept, asked } = this.#sums
    const summed = await kept.read(this.#db, asked)
    const rest = restOf(asked.within, summed.known, kept.spanMs)
    if (summed.known.length === 0 || rest.length > MOST_RESTS) return undefined
    return { ...summed, rest: rest.map(range => this.#within(kept.time, range)) }
  }

  /** Narrows to a range of a time. */
  #within(time: string, [fromMs, toMs]: Range): Visible {
    const column = `${this.#resource.table}.${time}`
    return builder => {
      this.#visible(builder)
      if (Number.isFinite(fromMs)) builder.where(column, '>=', fromMs)
      if (Number.isFinite(toMs)) builder.where(column, '<', toMs)
    }
  }

  async #groupsOf(batches: AsyncIterable<Row[]>): Promise<Group[]> {
    const groups = new Map<string, Group>()
    for await (const rows of batches) {
      for (const { values } of await this.#matching(rows)) {
        addTo(groups, values.map(this.#spanStart), 1)
      }
      if (groups.size > MAX_ROWS) throw tooManyGroups()
    }
    return [...groups.values()]
  }

  /** Of a counted time only its span is kept. */
  readonly #spanStart = (value: Json, index: number): Json => spanOf(this.#keys[index]!, value)?.startMs ?? value

  async byParent(ids: string[]): Promise<Map<string, Row[]>> {
    const start = await this.#start()
    if (this.#selectsNothing || ids.length === 0) return new Map()
    const parent = this.#scanKeys[0]!.column!.property
    if (!this.#inSql) return this.#checkedGroups(await this.#matchingByParent(start, ids, parent))
    const cut = this.#page.limit !== undefined || this.#page.skip > 0
    const found = cut ? await this.#cutByParent(start, ids) : await this.#together(start, ids, MAX_ROWS + 1)
    return this.#checkedGroups(Map.groupBy(found, row => row[parent] as string))
  }

  get #selectsNothing(): boolean {
    return this.#plan.where === false || this.#page.limit === 0
  }

  /** Without a limit, one row too many is an error, whichever row it is. */
  #isTooLarge(found: number, wanted: number): boolean {
    return this.#page.limit === undefined && found >= wanted
  }

  #checked(rows: Row[]): Row[] {
    this.#source.meter.load(rows)
    if (rows.length <= MAX_ROWS) return rows.map(row => this.#clean(row))
    throw this.#tooLarge()
  }

  #checkedGroups(groups: Map<string, Row[]>): Map<string, Row[]> {
    let count = 0
    for (const [id, rows] of groups) {
      this.#source.meter.load(rows)
      count += rows.length
      groups.set(
        id,
        rows.map(row => this.#clean(row)),
      )
    }
    if (count > MAX_ROWS) throw this.#tooLarge()
    return groups
  }

  #tooLarge(): MangoError {
    const tooMany = `More than ${MAX_ROWS.toLocaleString('en')} ${this.#resource.name} match.`
    const advice = 'page through them: give a limit, and then the id of the last row seen as after.'
    return new MangoError('RESULT_TOO_LARGE', 'query', `${tooMany} Narrow the selector, or ${advice}`)
  }

  #clean(row: Row): Row {
    for (const { column } of this.#keys) if (column && !column.own) delete row[column.property]
    return row
  }

  /** Rows in order, if TypeScript has to match and SQL can sort. */
  async #inOrder(start: Values | undefined): Promise<Hit[]> {
    const need = this.#page.skip + this.#wanted
    // A few parts are each read in their own order.
    const searched = this.#parts ? undefined : this.#searched
    const near = searched && (await this.#near(searched, start, need))
    if (near) return near
    const sizes = searched
      ? BATCH_SIZES.slice(-1)
      : need < BATCH_SIZES[0]! / 2
        ? [Math.max(need, FEWEST), ...BATCH_SIZES]
        : BATCH_SIZES
    const hits: Hit[] = []
    let position = start
    for (let batch = 0; ; batch++) {
      // Without an index in the order of the sort, each batch sorts the whole table. After a few batches, one scan in
      // the order of the table costs less.
      if (batch === sizes.length && this.#keys.length > 1) {
        return [...hits, ...(await this.#top(position, need - hits.length, this.#pass(position)))]
      }
      const size = sizes[batch] ?? sizes.at(-1)!
      const rows = await (searched
        ? this.#run(this.#orderedBuilder(position, size, 0, this.#visible, { ...this.#plan, joins: [searched] }))
        : this.#ordered(position, size, 0))
      for (const hit of await this.#matching(rows)) hits.push(hit)
      if (hits.length >= need || rows.length < size) return hits
      position = this.#rawValues(rows.at(-1)!)
    }
  }

  /** The relation whose documents are searched, as the first table, if it is the only join. */
  get #searched(): Joined | undefined {
    const [join, ...others] = this.#plan.joins
    return join?.isSearched && others.length === 0 ? { ...join, isFirst: true } : undefined
  }

  /**
   * The matches among the first rows in order, when the documents of a relation are searched: frequent values are found
   * there, while a search of all documents costs the same for any limit. Undefined if there are too few.
   */
  async #near(searched: Join, start: Values | undefined, need: number): Promise<Hit[] | undefined> {
    if (need > NEAR / 4 || !this.#keys.every(({ column }) => column?.own)) return undefined
    const first = fragmentOf(
      this.#visibleBuilder(true, this.#visible, { ...this.#plan, joins: [] })
        .modify(builder => {
          if (start) where(builder, beyond(this.#keys, start as SortValue[], this.#text))
        })
        .orderByRaw(orderBy(this.#keys))
        .limit(NEAR),
    )
    const { table } = this.#resource
    const { from, on } = searched
    const inOrder = `(${first.sql}) ${table} ${dialectOf(this.#db).joinInOrder} ${from.sql} ON ${on.sql}`
    const builder = this.#builder(undefined, () => {}, { ...this.#plan, joins: [] })
      .from(this.#db.raw(inOrder, [...first.bindings, ...from.bindings, ...on.bindings]))
      .orderByRaw(orderBy(this.#keys))
    const hits = await this.#matching(await this.#run(builder))
    return hits.length >= need ? hits : undefined
  }

  /** Rows in order, if TypeScript has to sort. */
  #inAnyOrder(start: Values | undefined): Promise<Hit[]> {
    return this.#top(start, this.#page.skip + this.#wanted, this.#pass(undefined))
  }

  /** The first `count` hits after `start`. */
  async #top(start: Values | undefined, count: number, batches: AsyncIterable<Row[]>): Promise<Hit[]> {
    let hits: Hit[] = []
    const cut = () => {
      hits = hits.sort((a, b) => this.#compare(a.values, b.values)).slice(0, count)
    }
    for await (const rows of batches) {
      for (const hit of await this.#matching(rows)) {
        if (start === undefined || this.#compare(hit.values, start) > 0) hits.push(hit)
      }
      if (this.#isTooLarge(hits.length, count)) return hits
      if (hits.length > 2 * count) cut()
    }
    cut()
    return hits
  }

  /** All rows that SQL selects after `start` in the order of the sort, in the order of the scan. */
  async *#pass(start: Values | undefined, parents?: string[]): AsyncGenerator<Row[]> {
    let from: SortValue[] | undefined
    for (let batch = 0; ; batch++) {
      const size = BATCH_SIZES[batch] ?? BATCH_SIZES.at(-1)!
      const builder = this.#builder(start).orderByRaw(orderBy(this.#scanKeys)).limit(size)
      if (from) where(builder, beyond(this.#scanKeys, from, this.#text))
      if (parents) builder.whereIn(this.#scanKeys[0]!.column!.sql, parents)
      const rows = await this.#run(builder)
      yield rows
      if (rows.length < size) return
      from = this.#scanKeys.map(key => rows.at(-1)![key.column!.property] as SortValue)
    }
  }

  #ordered(start: Values | undefined, count: number, skip: number): Promise<Row[]> {
    const pieces = this.#pieces(start)
    const isOwn = this.#keys.every(({ column }) => column?.own)
    if (pieces.length === 1 || !isOwn || pieces.length * (skip + count) > MOST_OF_PIECES) {
      const [visible] = pieces.length === 1 ? pieces[0]! : []
      return this.#run(this.#orderedBuilder(start, count, skip, visible))
    }
    return this.#select(this.#firstOfPieces(pieces, start, count, skip))
  }

  /** Each visible part combined with each alternative of the selector; one piece if a statement cannot hold more. */
  #pieces(start: Values | undefined): [visible: Visible, plan: Plan][] {
    const parts = this.#parts ?? [this.#visible]
    const canDivide = this.#alternatives.every(({ residual }) => residual === undefined)
    const alternatives = canDivide ? this.#alternatives.filter(({ where }) => where !== false) : []
    const plans = alternatives.length > 0 ? alternatives : [this.#plan]
    if (!this.#fit(parts, plans, start)) return [[this.#visible, this.#plan]]
    return parts.flatMap(part => plans.map((plan): [Visible, Plan] => [part, plan]))
  }

  /** Whether one statement can hold a SELECT for each part and plan; a selector may have thousands of values. */
  #fit(parts: Visible[], plans: Plan[], start?: Values): boolean {
    const selects = parts.length * plans.length
    if (selects === 1) return true
    if (selects > STATEMENT_LIMITS.selects) return false
    const sizes = plans.map(plan => fragmentOf(this.#builder(start, parts[0], plan)).bindings.length)
    return parts.length * sizes.reduce((sum, size) => sum + size, 0) <= STATEMENT_LIMITS.values
  }

  /** Selects id and sort columns of the first rows of each piece, takes the first of all, then reads their rows. */
  #firstOfPieces(pieces: [Visible, Plan][], start: Values | undefined, count: number, skip: number): Fragment {
    const { table } = this.#resource
    const columns = [...new Set(['id', ...this.#keys.map(({ column }) => column!.property)])]
    const firsts = pieces.map(([visible, plan]) =>
      fragmentOf(
        this.#orderedBuilder(start, skip + count, 0, visible, plan)
          .clearSelect()
          .select(columns.map(column => `${table}.${column}`)),
      ),
    )
    const order = this.#keys
      .map(({ column, direction }) => `${column!.property}${direction === 'desc' ? ' DESC' : ''}`)
      .join(', ')
    const { sql, bindings } = this.#union(firsts, this.#alternatives.length > 0 ? 'UNION' : 'UNION ALL')
    const ids = `SELECT id FROM (${sql}) pieces ORDER BY ${order} LIMIT ${count} OFFSET ${skip}`
    return {
      sql: `SELECT ${table}.* FROM (${ids}) first
        JOIN ${table} ON ${table}.id = first.id ORDER BY ${orderBy(this.#keys)}`,
      bindings,
    }
  }

  /** The rows of all SELECTs. */
  #union(selects: Fragment[], word: 'UNION' | 'UNION ALL' = 'UNION ALL'): Fragment {
    if (selects.length === 1) return selects[0]!
    const { member } = dialectOf(this.#db)
    return {
      sql: selects.map(({ sql }) => member(sql)).join(` ${word} `),
      bindings: selects.flatMap(({ bindings }) => bindings),
    }
  }

  #orderedBuilder(
    start: Values | undefined,
    count: number,
    skip: number,
    visible = this.#visible,
    plan = this.#plan,
  ): Knex.QueryBuilder {
    const builder = this.#builder(start, visible, plan).orderByRaw(orderBy(this.#keys)).limit(count)
    return skip > 0 ? builder.offset(skip) : builder
  }

  /** One list of rows for all parents. */
  #together(start: Values | undefined, ids: string[], count: number): Promise<Row[]> {
    return this.#run(this.#orderedBuilder(start, count, 0).whereIn(this.#scanKeys[0]!.column!.sql, ids))
  }

  /** A list for each parent, in one statement. Few parents are looked up one by one in the index. */
  async #cutByParent(start: Values | undefined, ids: string[]): Promise<Row[]> {
    const statement = this.#oneByOne(start, ids) ?? this.#ranked(start, ids)
    const found = await this.#select(statement)
    for (const row of found) delete row.mango_rank
    return found.sort((a, b) => this.#compare(this.#rawValues(a), this.#rawValues(b)))
  }

  /** A SELECT for each parent; undefined for more than a statement can hold. */
  #oneByOne(start: Values | undefined, ids: string[]): Fragment | undefined {
    if (ids.length > STATEMENT_LIMITS.selects) return undefined
    const builder = this.#orderedBuilder(start, this.#wanted, this.#page.skip)
    const one = builder.where(this.#scanKeys[0]!.column!.sql, PARENT).toSQL()
    if (ids.length * one.bindings.length > STATEMENT_LIMITS.values) return undefined
    return {
      sql: ids.map(() => dialectOf(this.#db).member(one.sql)).join(' UNION ALL '),
      bindings: ids.flatMap(id => one.bindings.map(value => (value === PARENT ? id : (value as string | number)))),
    }
  }

  /** All rows of all parents, numbered within each parent; it reads every row. */
  #ranked(start: Values | undefined, ids: string[]): Fragment {
    const parent = this.#scanKeys[0]!.column!.sql
    const { skip } = this.#page
    const numbered = this.#builder(start)
      .select(this.#db.raw(`ROW_NUMBER() OVER (PARTITION BY ${parent} ORDER BY ${orderBy(this.#keys)}) AS mango_rank`))
      .whereIn(parent, ids)
      .toSQL()
    return {
      sql: `SELECT * FROM (${numbered.sql}) numbered WHERE mango_rank > ? AND mango_rank <= ? LIMIT ${MAX_ROWS + 1}`,
      bindings: [...(numbered.bindings as Fragment['bindings']), skip, skip + this.#wanted],
    }
  }

  async #matchingByParent(start: Values | undefined, ids: string[], parent: string): Promise<Map<string, Row[]>> {
    const groups = new Map<string, Hit[]>()
    const need = this.#page.skip + this.#wanted
    let count = 0
    const cut = (hits: Hit[]) => hits.sort((a, b) => this.#compare(a.values, b.values)).slice(0, need)
    for await (const rows of this.#pass(this.#sortedInSql ? start : undefined, ids)) {
      for (const hit of await this.#matching(rows)) {
        if (start !== undefined && this.#compare(hit.values, start) <= 0) continue
        const id = hit.row[parent] as string
        const hits = groups.get(id) ?? []
        hits.push(hit)
        count += 1
        groups.set(id, hits.length > 2 * need ? cut(hits) : hits)
      }
      if (this.#page.skip === 0 && this.#isTooLarge(count, need)) throw this.#tooLarge()
    }
    const lists = new Map<string, Row[]>()
    for (const [id, hits] of groups) {
      const list = cut(hits)
        .slice(this.#page.skip)
        .map(hit => hit.row)
      if (list.length > 0) lists.set(id, list)
    }
    return lists
  }

  /** The SQL conditions on the rows. */
  #builder(start: Values | undefined, visible = this.#visible, plan = this.#plan): Knex.QueryBuilder {
    const builder = this.#visibleBuilder(true, visible, plan)
    if (typeof plan.where !== 'boolean') where(builder, plan.where)
    if (start && this.#sortedInSql) where(builder, beyond(this.#keys, start as SortValue[], this.#text))
    return builder
  }

  /** The visible rows with the sort columns; `selected`: with the relations of the selector. */
  #visibleBuilder(selected: boolean, visible = this.#visible, { joins } = this.#plan): Knex.QueryBuilder {
    const { table } = this.#resource
    const builder = this.#db(table).select(`${table}.*`)
    for (const { column } of this.#keys)
      if (column && !column.own) builder.select(`${column.sql} as ${column.property}`)
    for (const { from, on, required, isFirst } of joins as Joined[]) {
      const bindings = [...from.bindings, ...on.bindings]
      if (isFirst) {
        const inOrder = `${from.sql} ${dialectOf(this.#db).joinInOrder} ${table} ON ${on.sql}`
        builder.from(this.#db.raw(inOrder, bindings))
        continue
      }
      const kind = selected && required ? 'INNER' : 'LEFT'
      builder.joinRaw(`${kind} JOIN ${from.sql} ON ${on.sql}`, bindings as never)
    }
    visible(builder)
    return builder
  }

  async #select(statement: Fragment): Promise<Row[]> {
    await this.#source.meter.turn?.()
    this.#note(() => statement)
    const found = await select<Row>(this.#db, statement.sql, statement.bindings)
    this.#rowsExamined += found.length
    return found
  }

  async #run(builder: Knex.QueryBuilder): Promise<Row[]> {
    await this.#source.meter.turn?.()
    this.#note(() => fragmentOf(builder))
    const rows: Row[] = await builder
    this.#rowsExamined += rows.length
    return rows
  }

  #note(statement: () => Fragment): void {
    this.#first ??= statement
    this.#statements += 1
  }

  /** The rows that match the residual conditions, with their sort values. */
  async #matching(rows: Row[]): Promise<Hit[]> {
    const { residual } = this.#plan
    const documents =
      this.#needs.size === 0 ? undefined : await documentsOf(this.#source, this.#resource, rows, this.#needs)
    const hits: Hit[] = []
    this.#matcher.begin()
    for (const [index, row] of rows.entries()) {
      const document = documents?.[index] ?? null
      let isHit = residual === undefined || this.#matcher.row(residual, document)
      if (typeof isHit !== 'boolean') isHit = await isHit
      if (isHit) hits.push({ row, values: this.#values(row, document) })
    }
    this.#matcher.end()
    return hits
  }

  #values(row: Row, document: Json): Values {
    return this.#keys.map(({ path, column }) => {
      if (column) return row[column.property] as SortValue
      const found = read(document, path)
      return typeof found === 'symbol' ? null : found
    })
  }

  #rawValues(row: Row): Values {
    return this.#values(row, null)
  }

  #compare(a: Values, b: Values): number {
    for (const [index, { column, direction }] of this.#keys.entries()) {
      const difference = column ? compareRaw(a[index], b[index]) : compare(a[index]!, b[index]!)
      if (difference !== 0) return direction === 'asc' ? difference : -difference
    }
    return 0
  }

  /**
   * The sort values of the row named by `after`: as the caller read them, or their present values. The id suffices if
   * rows are sorted only by it.
   */
  async #start(): Promise<Values | undefined> {
    if (this.#page.after === undefined) return undefined
    if (this.#place) return this.#place
    if (this.#keys.length === 1) return [this.#page.after]
    const builder = this.#visibleBuilder(false).where(`${this.#resource.table}.id`, this.#page.after)
    const rows: Row[] = await builder
    if (rows.length === 0) {
      const gone = `no row ${this.#page.after} is visible, so its place in this sort is unknown`
      throw badQuery('after', `${gone}; give the values it had as afterValues, or sort by id, where any id works`)
    }
    const [document] = await documentsOf(this.#source, this.#resource, rows, this.#needs)
    return this.#values(rows[0]!, document!)
  }

  async explain(): Promise<Explain> {
    const first = this.#asked ? this.#first?.() : undefined
    return {
      sql: first?.sql ?? null,
      bindings: first?.bindings.length ?? 0,
      indexes: first ? await this.#indexes(first) : null,
      matchedRowByRow: describe(this.#plan.residual),
      sortedAfterwards: this.#keys.filter(key => !key.column).map(key => key.path.join('.')),
      statements: this.#statements,
      rowsExamined: this.#rowsExamined,
    }
  }

  async #indexes({ sql, bindings }: Fragment): Promise<string[]> {
    const { explain, indexesIn } = dialectOf(this.#db)
    const steps = await select<Row>(this.#db, explain + sql, bindings)
    return [...new Set(steps.flatMap(indexesIn))]
  }
}

/** The most ranges of time that are counted beside what is kept. */
const MOST_RESTS = 50

/** The most spans of time, with the other fields, that are folded into buckets. */
const MOST_SPANS = 100_000

/** The span of time of a value in a counted field: epoch milliseconds as stored, ISO 8601 as computed. */
const spanOf = ({ bucket }: SortKey, value: Json): { startMs: number; text: string } | undefined =>
  bucket === undefined || value === null
    ? undefined
    : bucket.of(typeof value === 'string' ? Date.parse(value) : Number(value))

/** Returns the group that the rows were added to. */
const addTo = (groups: Map<string, Group>, values: Json[], count: number): Group => {
  const key = JSON.stringify(values)
  const group = groups.get(key) ?? { values, count: 0 }
  group.count += count
  groups.set(key, group)
  return group
}

const fragmentOf = (builder: Knex.QueryBuilder): Fragment => {
  const { sql, bindings } = builder.toSQL()
  return { sql, bindings: bindings as Fragment['bindings'] }
}

const tooManyGroups = (): MangoError => {
  const tooMany = `There are more than ${MAX_ROWS.toLocaleString('en')} keys to count by.`
  return new MangoError('RESULT_TOO_LARGE', 'by', `${tooMany} Narrow the selector, or count by fewer fields.`)
}

/** The visible form of a row's value in a sort field. */
const shownValue = ({ column, type }: SortKey, value: Json): Json =>
  column && type !== undefined && type !== 'list' ? fromColumn(type, value) : value

/** The placeholder for a parent's id in a statement repeated for each parent. */
const PARENT = '\u0000parent'

const where = (builder: Knex.QueryBuilder, condition: Fragment): Knex.QueryBuilder =>
  builder.whereRaw(condition.sql, condition.bindings)

/** The conditions of a selector in short form. */
const describe = (node: Node | undefined): string[] => {
  if (node === undefined || node.kind === 'constant') return []
  if (node.kind === 'not') return describe(node.node)
  if (node.kind !== 'field') return [...new Set(node.nodes.flatMap(describe))]
  return [`${node.path.join('.')} ${node.negated ? '$not ' : ''}${node.condition.operator}`]
}
