import fc from 'fast-check'
import { connect, type Database } from '../../server/database/connect.ts'
import type { Resource } from '../../server/mango/resource.ts'
import type { Json } from '../../server/mango/selector.ts'
import { toIso } from '../../shared/time.ts'
import { freshDatabase } from '../support/databases.ts'

export { connect }

// Tables with every kind of field that a resource can have, and documents that say what is in them.

export const statuses = ['open', 'done', 'late'] as const

export const makers: Resource = {
  name: 'makers',
  table: 'makers',
  fields: {
    id: { kind: 'column', column: 'id', type: 'uuid' },
    name: { kind: 'column', column: 'name', type: 'string' },
    rank: { kind: 'column', column: 'rank_number', type: 'integer', nullable: true },
    parent: { kind: 'related', column: 'parent_id', resource: () => makers },
    things: { kind: 'children', resource: () => things, key: 'maker_id', orderBy: 'id' },
  },
}

export const parts: Resource = {
  name: 'parts',
  table: 'parts',
  fields: {
    number: { kind: 'column', column: 'number', type: 'integer' },
    note: { kind: 'column', column: 'note', type: 'string', nullable: true },
    good: { kind: 'column', column: 'good', type: 'boolean' },
    maker: { kind: 'related', column: 'maker_id', resource: () => makers },
  },
}

export const things: Resource = {
  name: 'things',
  table: 'things',
  fields: {
    id: { kind: 'column', column: 'id', type: 'uuid' },
    name: { kind: 'column', column: 'name', type: 'string' },
    note: { kind: 'column', column: 'note', type: 'string', nullable: true },
    code: { kind: 'column', column: 'code', type: 'string' },
    status: { kind: 'column', column: 'status', type: 'string', values: statuses },
    count: { kind: 'column', column: 'count_number', type: 'integer' },
    score: { kind: 'column', column: 'score', type: 'integer', nullable: true },
    live: { kind: 'column', column: 'live', type: 'boolean' },
    createdAt: { kind: 'column', column: 'created_at', type: 'time' },
    endedAt: { kind: 'column', column: 'ended_at', type: 'time', nullable: true },
    day: { kind: 'column', column: 'day', type: 'date', nullable: true },
    makerId: { kind: 'column', column: 'maker_id', type: 'uuid', nullable: true },
    maker: { kind: 'related', column: 'maker_id', resource: () => makers },
    payload: { kind: 'json', column: 'payload' },
    tags: { kind: 'list', table: 'thing_tags', key: 'thing_id', column: 'tag', type: 'string' },
    parts: { kind: 'children', resource: () => parts, key: 'thing_id', orderBy: 'number' },
  },
}

/** An empty database with the tables of things, makers and parts. */
export const thingsDatabase = async (engine: string): Promise<{ database: Database; drop(): Promise<void> }> => {
  const fresh = await freshDatabase(engine)
  const { knex, dialect } = fresh.database
  const id = dialect.key(36)
  const tables = [
    `makers (id ${id} NOT NULL PRIMARY KEY, name ${dialect.text(255)} NOT NULL, rank_number integer, parent_id ${id})`,
    `things (id ${id} NOT NULL PRIMARY KEY, name ${dialect.text(255)} NOT NULL, note ${dialect.text(255)},
       code ${dialect.key(16)} NOT NULL, status ${dialect.key(8)} NOT NULL, count_number integer NOT NULL,
       score integer, live ${dialect.boolean} NOT NULL, created_at bigint NOT NULL, ended_at bigint,
       day ${dialect.key(10)}, maker_id ${id}, payload ${dialect.longText} NOT NULL)`,
    `thing_tags (thing_id ${id} NOT NULL, tag ${dialect.key(16)} NOT NULL, PRIMARY KEY (thing_id, tag))`,
    `parts (thing_id ${id} NOT NULL, number integer NOT NULL, note ${dialect.text(255)},
       good ${dialect.boolean} NOT NULL, maker_id ${id},
       PRIMARY KEY (thing_id, number))`,
  ]
  for (const table of tables) await knex.raw(`CREATE TABLE ${table}`)
  for (const column of ['name', 'created_at', 'maker_id'])
    await knex.raw(`CREATE INDEX things_by_${column} ON things (${column})`)
  await knex.raw('CREATE INDEX makers_by_name ON makers (name)')
  return fresh
}

export type Maker = { id: string; name: string; rank: number | null; parentId: string | null }
export type Part = { number: number; note: string | null; good: boolean; makerId: string | null }
export type Thing = {
  id: string
  name: string
  note: string | null
  code: string
  status: (typeof statuses)[number]
  count: number
  score: number | null
  live: boolean
  createdAt: number
  endedAt: number | null
  day: string | null
  makerId: string | null
  payload: Record<string, Json>
  tags: string[]
  parts: Part[]
}
export type World = { makers: Maker[]; things: Thing[] }

export const insertWorld = async ({ knex }: Database, world: World): Promise<void> => {
  await knex.transaction(async trx => {
    const insert = async (table: string, rows: Record<string, unknown>[]) => {
      await trx(table).del()
      for (let from = 0; from < rows.length; from += 200) await trx(table).insert(rows.slice(from, from + 200))
    }
    await insert(
      'makers',
      world.makers.map(({ id, name, rank, parentId }) => ({ id, name, rank_number: rank, parent_id: parentId })),
    )
    await insert(
      'things',
      world.things.map(({ count, createdAt, endedAt, makerId, payload, tags: _tags, parts: _parts, ...same }) => ({
        ...same,
        live: same.live ? 1 : 0,
        count_number: count,
        created_at: createdAt,
        ended_at: endedAt,
        maker_id: makerId,
        payload: JSON.stringify(payload),
      })),
    )
    await insert(
      'thing_tags',
      world.things.flatMap(thing => thing.tags.map(tag => ({ thing_id: thing.id, tag }))),
    )
    await insert(
      'parts',
      world.things.flatMap(thing =>
        thing.parts.map(({ number, note, good, makerId }) => ({
          thing_id: thing.id,
          number,
          note,
          good: good ? 1 : 0,
          maker_id: makerId,
        })),
      ),
    )
  })
}

/** Things as a selector sees them, by someone who sees these makers, and as a maker's these things. */
export const documentsOf = (
  world: World,
  sees: (maker: Maker) => boolean = () => true,
  seesThing: (thing: Thing) => boolean = () => true,
): Record<string, Json>[] => {
  const makerOf = (id: string | null): Json => {
    const maker = world.makers.find(candidate => candidate.id === id && sees(candidate))
    if (!maker) return null
    return {
      ...{ id: maker.id, name: maker.name, rank: maker.rank, parent: makerOf(maker.parentId) },
      things: world.things
        .filter(thing => thing.makerId === maker.id && seesThing(thing))
        .map(({ id, name, count }) => ({ id, name, count })),
    }
  }
  return world.things.map(thing => ({
    ...{ id: thing.id, name: thing.name, note: thing.note, code: thing.code, status: thing.status, count: thing.count },
    ...{ score: thing.score, live: thing.live, createdAt: toIso(thing.createdAt) },
    ...{ endedAt: thing.endedAt === null ? null : toIso(thing.endedAt), day: thing.day, makerId: thing.makerId },
    maker: makerOf(thing.makerId),
    payload: thing.payload,
    tags: [...thing.tags].sort(),
    parts: thing.parts.map(({ number, note, good, makerId }) => ({ number, note, good, maker: makerOf(makerId) })),
  }))
}

// Few values, so that what is looked for is often there, and awkward ones.
const texts = [
  ...[
    '',
    'a',
    'A',
    'ab',
    'abc',
    'abd',
    'b',
    'z',
    '~',
    'Acme',
    'acme',
    'ACME Ltd',
    'Acme  Ltd',
    'task',
    'Kate',
    'aaaaaaab',
  ],
  ...['k', '\u212a', 's', '\u017f', 'é', 'abé', 'É', 'ß', 'İ', 'i', '\ud7ff', '\ue000', '\uffff', '😀', 'a😀'],
  ...[' ', 'a ', ' a', 'a b', "it's", '100%', 'a_b', '"a"', 'a\\b', 'a\nb', '$a', '?', '??', ':a', '#'],
]
const codes = ['', 'a', 'ab', 'abc', 'open', 'A1', 'Z', '~', 'a b', "it's", '100%', 'task', 'k']
const numbers = [-3, -1, 0, 1, 2, 5, 7, 1000]
const times = [-1, 0, 1, 999, 1_700_000_000_000, 1_700_000_000_001, 1_763_683_200_000, 253_402_300_799_999]
const days = ['2026-01-31', '2026-02-01', '1999-12-31']
const tags = ['a', 'b', 'c', 'open', 'B2']
const ids = Array.from({ length: 40 }, (_, index) => `0190a000-0000-7000-8000-${String(index).padStart(12, '0')}`)

const text = fc.constantFrom(...texts)
const maybe = <T>(value: fc.Arbitrary<T>) => fc.option(value, { nil: null, freq: 3 })
const makerIds = ids.slice(0, 5)

const scalar: fc.Arbitrary<Json> = fc.oneof(text, fc.constantFrom<Json>(...numbers, 1.5, 2.5, null, true, false))
const anyJson: fc.Arbitrary<Json> = fc.oneof(
  { weight: 5, arbitrary: scalar },
  fc.array(scalar, { maxLength: 3 }),
  fc.constant<Json>({}),
  fc.constantFrom<Json>({ a: 1 }, { a: 1, b: 'x' }, [[1], 2], [{ a: 1 }]),
)
const payload: fc.Arbitrary<Record<string, Json>> = fc.record(
  {
    a: anyJson,
    b: fc.record({ c: anyJson, d: scalar }, { requiredKeys: [] }) as fc.Arbitrary<Json>,
    list: fc.array(fc.oneof(scalar, fc.record({ c: scalar, d: scalar }, { requiredKeys: [] }) as fc.Arbitrary<Json>), {
      maxLength: 3,
    }) as fc.Arbitrary<Json>,
    'x.y': scalar,
    '0': scalar,
  },
  { requiredKeys: [] },
) as fc.Arbitrary<Record<string, Json>>

export const world: fc.Arbitrary<World> = fc
  .record({
    makers: fc.array(
      fc.record({
        name: text,
        rank: maybe(fc.constantFrom(...numbers)),
        parentId: maybe(fc.constantFrom(...makerIds)),
      }),
      { minLength: 3, maxLength: 5 },
    ),
    things: fc.array(
      fc.record({
        name: text,
        note: maybe(text),
        code: fc.constantFrom(...codes),
        status: fc.constantFrom(...statuses),
        count: fc.constantFrom(...numbers),
        score: maybe(fc.constantFrom(...numbers)),
        live: fc.boolean(),
        createdAt: fc.constantFrom(...times),
        endedAt: maybe(fc.constantFrom(...times)),
        day: maybe(fc.constantFrom(...days)),
        makerId: maybe(fc.constantFrom(...makerIds)),
        payload,
        tags: fc.uniqueArray(fc.constantFrom(...tags), { maxLength: 3 }),
        parts: fc.array(
          fc.record({ note: maybe(text), good: fc.boolean(), makerId: maybe(fc.constantFrom(...makerIds)) }),
          { maxLength: 3 },
        ),
      }),
      { minLength: 15, maxLength: 40, size: 'max' },
    ),
  })
  .map(({ makers, things }) => ({
    // No maker is its own ancestor.
    makers: makers.map((maker, index) => ({
      ...maker,
      id: ids[index]!,
      parentId: maker.parentId !== null && maker.parentId < ids[index]! ? maker.parentId : null,
    })),
    things: things.map((thing, index) => ({
      ...thing,
      id: ids[index]!,
      parts: thing.parts.map((part, number) => ({ ...part, number: number + 1 })),
    })),
  }))

const patterns = [
  ...[
    'a',
    '^a',
    'a$',
    '^a$',
    '^Ac',
    '(?i)acme',
    '(?i)task',
    '(?i)^k',
    '(?i)s',
    'a|b',
    '^(a|A)',
    'a.*e',
    '[a-c]+',
    '^[A-C]',
    '[a-c]{2}$',
    '[^a]\\w',
    '\\d',
    '^.{2,3}$',
    '^[^\\s]+$',
    'x?',
    '',
    '^',
  ],
  ...[
    'é',
    '(?i)É',
    'a\\.b',
    'a_b',
    '%',
    '"',
    '\\\\',
    'a b',
    ' $',
    '\\bLtd',
    '(?s)a.b',
    '(?m)^b',
    '😀',
    '(?i)i',
    'Acme  Ltd',
    '\\x41',
    '\\Qa\\E',
    '(?i)k|é',
  ],
]

type Selector = Record<string, unknown>
const comparisons = ['$eq', '$ne', '$lt', '$lte', '$gt', '$gte'] as const
const type = fc.constantFrom('null', 'boolean', 'number', 'string', 'array', 'object')

const common: fc.Arbitrary<Selector>[] = [
  fc.record({ $exists: fc.boolean() }),
  fc.record({ $type: type }),
  fc.record({ $size: fc.nat({ max: 3 }) }),
  fc.record({ $mod: fc.constantFrom([2, 0], [2, 1], [2, -1], [-3, 1], [5, 2]) }),
  fc.record({ $beginsWith: text }),
  fc.record({ $regex: fc.constantFrom(...patterns) }),
]

/** Conditions with values that `equal` yields where they must be among a field's, and `range` where they need not. */
const conditionOn = (equal: fc.Arbitrary<Json>, range: fc.Arbitrary<Json>): fc.Arbitrary<unknown> => {
  const lists = fc.array(equal, { maxLength: 4 })
  const one = fc.oneof(
    {
      weight: 2,
      arbitrary: equal.filter(value => typeof value !== 'object' || value === null || Array.isArray(value)),
    },
    {
      weight: 6,
      arbitrary: fc
        .tuple(fc.constantFrom(...comparisons), equal, range)
        .map(([operator, a, b]) => ({ [operator]: operator === '$eq' || operator === '$ne' ? a : b })),
    },
    {
      weight: 3,
      arbitrary: fc
        .tuple(fc.constantFrom('$in', '$nin', '$all'), lists)
        .map(([operator, values]) => ({ [operator]: values })),
    },
    ...common.map(arbitrary => ({ weight: 1, arbitrary })),
  )
  return withLogic(one as fc.Arbitrary<unknown>)
}

const withLogic = (one: fc.Arbitrary<unknown>): fc.Arbitrary<unknown> => {
  const object = one.filter(
    condition => typeof condition === 'object' && condition !== null && !Array.isArray(condition),
  )
  return fc.oneof(
    { weight: 6, arbitrary: one },
    { weight: 2, arbitrary: object.map(condition => ({ $not: condition })) },
    { weight: 1, arbitrary: fc.array(one, { maxLength: 3 }).map(list => ({ $or: list })) },
    { weight: 1, arbitrary: fc.array(one, { maxLength: 3 }).map(list => ({ $and: list })) },
    { weight: 1, arbitrary: fc.array(object, { maxLength: 3 }).map(list => ({ $nor: list })) },
    { weight: 1, arbitrary: fc.tuple(object, object).map(([a, b]) => ({ ...(a as object), ...(b as object) })) },
  )
}

const onText = conditionOn(
  fc.oneof({ weight: 4, arbitrary: text as fc.Arbitrary<Json> }, anyJson),
  fc.oneof(text, anyJson),
)
const onNumber = conditionOn(
  fc.oneof(
    { weight: 4, arbitrary: fc.constantFrom<Json>(...numbers, 0.5, 1.5, -0.5, 1e300, -1e300, 2 ** 53) },
    anyJson,
  ),
  fc.oneof(fc.constantFrom<Json>(...numbers, 0.5, 1.5, 1e300), anyJson),
)
const onBoolean = conditionOn(fc.oneof(fc.boolean(), anyJson), fc.oneof(fc.boolean(), anyJson))
const time: fc.Arbitrary<Json> = fc.oneof(
  { weight: 4, arbitrary: fc.constantFrom(...times.map(toIso)) },
  fc.constant(null),
)
const onTime = conditionOn(time, time)
const day: fc.Arbitrary<Json> = fc.oneof(fc.constantFrom(...days), fc.constant(null))
const onDay = conditionOn(day, day)
const status: fc.Arbitrary<Json> = fc.oneof(
  { weight: 4, arbitrary: fc.constantFrom(...statuses) },
  fc.constantFrom<Json>(null, 5),
)
const onStatus = conditionOn(status, fc.oneof(status, text))
const onId = conditionOn(
  fc.oneof({ weight: 4, arbitrary: fc.constantFrom<Json>(...ids, 'x', 'é', '') }, scalar),
  fc.oneof(fc.constantFrom(...ids, '0190b', 'é'), scalar),
)
const onJson = fc.oneof(
  { weight: 4, arbitrary: conditionOn(anyJson, anyJson) },
  {
    weight: 1,
    arbitrary: fc
      .tuple(fc.constantFrom('$elemMatch', '$allMatch'), conditionOn(scalar, anyJson))
      .filter(([, c]) => isSelector(c))
      .map(([o, c]) => ({ [o]: c })),
  },
  {
    weight: 1,
    arbitrary: fc
      .tuple(fc.constantFrom('$elemMatch', '$allMatch'), fc.constantFrom('c', 'd'), conditionOn(scalar, anyJson))
      .map(([o, name, c]) => ({ [o]: { [name]: c } })),
  },
  {
    weight: 1,
    arbitrary: fc.constantFrom('a', 'c', '^c', 'x').map(pattern => ({ $keyMapMatch: { $regex: pattern } })),
  },
)
/** Of an object that is a row no more can be asked than what it is. */
const onRow = conditionOn(
  fc.constantFrom<Json>(null, 0, 'x', []).filter(value => value !== undefined),
  fc.constantFrom<Json>(null, 0, 'x', [], {}),
)

const isSelector = (value: unknown): boolean => typeof value === 'object' && value !== null && !Array.isArray(value)

const at = (path: string, condition: fc.Arbitrary<unknown>): fc.Arbitrary<Selector> =>
  condition.map(value => ({ [path]: value }))

const onPart: fc.Arbitrary<unknown> = fc.oneof(
  at('number', onNumber),
  at('note', onText),
  at('good', onBoolean),
  at('maker.name', onText),
  at('maker', onRow),
  fc.constant({ $exists: true }),
)
const elements = (condition: fc.Arbitrary<unknown>): fc.Arbitrary<unknown> =>
  withLogic(
    fc
      .tuple(fc.constantFrom('$elemMatch', '$allMatch'), withLogic(condition).filter(isSelector))
      .map(([operator, inner]) => ({ [operator]: inner })),
  )
const emptyOrScalar = fc.constantFrom<Json>(null, 0, 'x', [])
const onRows = fc.oneof(
  { weight: 3, arbitrary: elements(onPart) },
  {
    weight: 1,
    arbitrary: conditionOn(
      emptyOrScalar.filter(value => !Array.isArray(value)),
      emptyOrScalar,
    ),
  },
)
const tag: fc.Arbitrary<Json> = fc.constantFrom(...tags, 'é')
const onTags = fc.oneof(
  {
    weight: 3,
    arbitrary: conditionOn(
      fc.oneof(
        { weight: 5, arbitrary: tag },
        fc.array(tag, { maxLength: 2 }) as fc.Arbitrary<Json>,
        fc.constantFrom<Json>(null, 3),
      ),
      fc.oneof(tag, fc.array(tag, { maxLength: 2 }) as fc.Arbitrary<Json>),
    ),
  },
  { weight: 2, arbitrary: elements(conditionOn(tag, fc.oneof(tag, scalar))) },
)

const onField: fc.Arbitrary<Selector> = fc.oneof(
  { weight: 2, arbitrary: at('id', onId) },
  { weight: 4, arbitrary: at('name', onText) },
  { weight: 4, arbitrary: at('note', onText) },
  { weight: 3, arbitrary: at('code', onText) },
  { weight: 2, arbitrary: at('status', onStatus) },
  { weight: 2, arbitrary: at('count', onNumber) },
  { weight: 2, arbitrary: at('score', onNumber) },
  { weight: 1, arbitrary: at('live', onBoolean) },
  { weight: 1, arbitrary: at('createdAt', onTime) },
  { weight: 2, arbitrary: at('endedAt', onTime) },
  { weight: 1, arbitrary: at('day', onDay) },
  { weight: 1, arbitrary: at('makerId', onId) },
  { weight: 2, arbitrary: at('maker', onRow) },
  { weight: 3, arbitrary: at('maker.name', onText) },
  { weight: 2, arbitrary: at('maker.rank', onNumber) },
  { weight: 1, arbitrary: at('maker.parent.name', onText) },
  { weight: 1, arbitrary: at('maker.parent', onRow) },
  { weight: 1, arbitrary: at('maker.things', elements(at('count', onNumber))) },
  { weight: 1, arbitrary: at('maker', fc.record({ name: onText, rank: onNumber })) },
  ...[
    'payload.a',
    'payload.b.c',
    'payload.b',
    'payload.list',
    'payload.list.1',
    'payload.list.0.c',
    'payload.x\\.y',
    'payload.0',
    'payload.none',
  ].map(path => ({ weight: 1, arbitrary: at(path, onJson) })),
  { weight: 3, arbitrary: at('tags', onTags) },
  {
    weight: 1,
    arbitrary: at(
      'tags.0',
      onText.filter(() => true),
    ),
  },
  { weight: 3, arbitrary: at('parts', onRows) },
  { weight: 1, arbitrary: at('parts.0.note', onText) },
  { weight: 1, arbitrary: at('parts.1', onRow) },
)

/** Selectors over things. */
export const selector: fc.Arbitrary<Selector> = fc.letrec<{ tree: Selector }>(tie => ({
  tree: fc.oneof(
    { depthSize: 'small', withCrossShrink: true },
    { weight: 5, arbitrary: onField },
    { weight: 2, arbitrary: fc.tuple(onField, onField).map(([a, b]) => ({ ...a, ...b })) },
    { weight: 1, arbitrary: fc.array(tie('tree'), { maxLength: 3 }).map(nodes => ({ $and: nodes })) },
    { weight: 1, arbitrary: fc.array(tie('tree'), { maxLength: 3 }).map(nodes => ({ $or: nodes })) },
    { weight: 1, arbitrary: fc.array(tie('tree'), { maxLength: 2 }).map(nodes => ({ $nor: nodes })) },
    { weight: 1, arbitrary: tie('tree').map(node => ({ $not: node })) },
  ),
})).tree

const sortPaths = [
  ...['id', 'name', 'note', 'code', 'status', 'count', 'score', 'live', 'createdAt', 'endedAt', 'day', 'makerId'],
  ...['maker.name', 'maker.rank', 'maker.parent.name', 'payload.a', 'payload.b.c', 'tags', 'parts.0.note'],
]
export type Sort = { path: string; direction: 'asc' | 'desc' }[]
export const sort: fc.Arbitrary<Sort> = fc.array(
  fc.record({ path: fc.constantFrom(...sortPaths), direction: fc.constantFrom('asc' as const, 'desc' as const) }),
  { maxLength: 3 },
)
