import assert from 'node:assert/strict'
import { after, before, it } from 'node:test'
import {
  type GraphQLField,
  type GraphQLObjectType,
  getNamedType,
  getNullableType,
  isEnumType,
  isLeafType,
  isListType,
  isObjectType,
} from 'graphql'
import { attempts, resources } from '../../server/domain/resources.ts'
import { createSchema } from '../../server/graphql/schema.ts'
import { MangoError } from '../../server/mango/error.ts'
import { findByParents } from '../../server/mango/find.ts'
import type { Resource } from '../../server/mango/resource.ts'
import { describeEachEngine } from '../support/databases.ts'
import { atFullSize, everyNth } from '../support/size.ts'
import { idOf, type Kind, type KindName, kinds, markOf } from './noninterference.ts'
import { type Asked, compared, readsAs, startWorlds } from './two-worlds.ts'

// Noninterference: data that a token does not see changes none of its answers. Everything is derived from the schema:
// an added field, query or mutation is covered too, or the test says that it does not know how.

/** More of them: `npm run bench -- two-worlds`. */
const RANDOM_QUERIES = atFullSize(100, 20)
const SEED = 20261123

const schema = createSchema()
type Field = GraphQLField<unknown, unknown>
const fieldsOf = (type: GraphQLObjectType): Field[] => Object.values(type.getFields())
const objectOf = (field: Field): GraphQLObjectType | undefined => {
  const type = getNamedType(field.type)
  return isObjectType(type) ? type : undefined
}
const isList = (field: Field): boolean => isListType(getNullableType(field.type))

const tableOf = (list: string): string => resources[list]!.table

/** The root fields that take a query and list something, with what they list. */
const lists = fieldsOf(schema.getQueryType()!).filter(
  field => isList(field) && field.args.every(argument => argument.name === 'query'),
)

/** All fields of a type and of what hangs on it, `levels` deep. */
const everythingOf = (type: GraphQLObjectType, levels: number, isOf: (field: Field) => boolean = () => true): string =>
  fieldsOf(type)
    .filter(isOf)
    .map(field => {
      assert.ok(
        field.args.every(argument => argument.name === 'query'),
        `this walk does not know the arguments of ${type.name}.${field.name}`,
      )
      const inner = objectOf(field)
      if (!inner) return field.name
      if (levels === 0) return ''
      // More than there are; it keeps the cost of the document within its limit.
      const query = isList(field) && field.args.length > 0 ? '(query: { limit: 14 })' : ''
      return `${field.name}${query} { ${everythingOf(inner, levels - 1, isOf)} }`
    })
    .join(' ')

type Condition = object
/**
 * Something that a selector or a sort may name. Not all of them can
 * be selected on: then the error is the same in both data sets.
 */
type Place = { path: string; type: string; values: readonly string[]; selector: (condition: Condition) => object }

const PAYLOAD = ['projectReport.projectId', 'projectReport.submitterName', 'note', 'accessTokenId']

const placesOf = (type: GraphQLObjectType, levels: number): Place[] =>
  fieldsOf(type).flatMap(field => {
    const { name } = field
    const inner = objectOf(field)
    if (inner) {
      // Of some rows, selectors know the id alone.
      const id: Place = { path: name, type: 'UUID', values: [], selector: condition => ({ [name]: condition }) }
      if (levels === 0) return isList(field) ? [] : [id]
      const below = placesOf(inner, isList(field) ? 0 : levels - 1).map(
        (place): Place => ({
          ...place,
          path: `${name}.${place.path}`,
          selector: condition =>
            isList(field)
              ? { [name]: { $elemMatch: place.selector(condition) } }
              : { [name]: place.selector(condition) },
        }),
      )
      return isList(field) ? below : [id, ...below]
    }
    const leaf = getNamedType(field.type)
    assert.ok(isLeafType(leaf))
    const values = isEnumType(leaf) ? leaf.getValues().map(value => value.name) : []
    const paths = leaf.name === 'JSON' ? PAYLOAD.map(path => `${name}.${path}`) : [name]
    return paths.map(path => ({
      path,
      type: leaf.name,
      values,
      selector: condition => ({ [path]: isList(field) ? { $elemMatch: condition } : condition }),
    }))
  })

/** Of organisation S. */
const hidden: Record<string, string> = {
  organisations: idOf('organisation S'),
  projects: idOf('project S1'),
  projectReports: idOf('report S1 2026-2'),
  webhooks: idOf('webhook named S'),
  events: idOf('event submitted S'),
  deliveries: idOf('delivery submitted S to named S'),
  // A project that was once of A, and a delivery to a webhook that names only A now.
  'moved project': idOf('project moved to S'),
  'old delivery': idOf('delivery submitted S to narrowed to A'),
}
const hiddenIds = Object.values(hidden)

/** Two queries that between them hold every kind of condition, and its opposite. */
const queriesOn = ({ path, type, values, selector }: Place): object[] => {
  const conditions = [
    { $regex: `S|5|${markOf('S')}` },
    { $exists: false },
    ...(type === 'UUID' ? [{ $in: hiddenIds }] : []),
    ...(values.length > 0 ? [{ $in: values.slice(0, 2) }] : []),
    ...(type === 'Int' || type === 'DateTime' ? [{ $lt: type === 'Int' ? 2 : '2100-01-01T00:00:00Z' }] : []),
  ].map(selector)
  return [
    { selector: { $or: conditions } },
    { selector: { $nor: conditions } },
    { sort: [{ [path]: 'desc' }, 'id'], limit: 4, skip: 1 },
  ]
}

type Probe = { resource: Resource; field: (argument: string) => string; query: object }

/** Every list with every query on it. */
const rootProbes: Probe[] = lists.flatMap(list =>
  placesOf(objectOf(list)!, 2)
    .flatMap(queriesOn)
    .map(query => ({ resource: resources[list.name]!, field: argument => `${list.name}(${argument}) { id }`, query })),
)

/** Every list in a list with every query on it. */
const nestedProbes: Probe[] = lists.flatMap(list =>
  fieldsOf(objectOf(list)!)
    .filter(field => isList(field) && objectOf(field))
    .flatMap(field =>
      placesOf(objectOf(field)!, 1)
        .flatMap(place => queriesOn(place).filter((_, index) => index !== 1))
        .map(query => ({
          resource: { ...resources, attempts }[field.name]!,
          field: (argument: string) => `${list.name} { id ${field.name}(${argument}) { __typename } }`,
          query,
        })),
    ),
)

/**
 * Of tests that ask as several tokens: every day each asks another part, and one of them asks all of it on SQLite
 * or on a server.
 */
const shareOf = <T>(all: readonly T[], engine: string, n: number, of: number): readonly T[] => {
  const part = engine === 'sqlite' ? 2 * n : 2 * n + 1
  return atFullSize(
    all,
    all.filter((_, index) => index % (2 * of) === part),
  )
}

describeEachEngine('what a token does not see', engine => {
  /** As many fields as a document may have. A TiDB of one process takes too long for so many. */
  const atOnce = engine.startsWith('tidb') ? 8 : 40
  const partsOf = <T>(all: readonly T[]): (readonly T[])[] =>
    Array.from({ length: Math.ceil(all.length / atOnce) }, (_, n) => all.slice(n * atOnce, (n + 1) * atOnce))

  /** Documents of fields, each with a query of its own. */
  const together = (fields: readonly Pick<Probe, 'field' | 'query'>[]): Asked[] =>
    partsOf(fields).map(part => ({
      document: `query(${part.map((_, n) => `$q${n}: MangoQuery`).join(', ')}) {
        ${part.map(({ field }, n) => `a${n}: ${field(`query: $q${n}`)}`).join('\n')} }`,
      variables: Object.fromEntries(part.map(({ query }, n) => [`q${n}`, query])),
    }))

  let worlds: Awaited<ReturnType<typeof startWorlds>>
  let rootQueries: Probe[]
  let nestedQueries: Probe[]

  before(async () => {
    worlds = await startWorlds(engine)
    rootQueries = await answered(rootProbes)
    nestedQueries = await answered(nestedProbes)
  })
  after(() => worlds.stop())

  /**
   * Those that are answered. One that names what cannot be selected
   * on is refused whatever there is, and the document with it.
   */
  const answered = async (probes: Probe[]): Promise<Probe[]> => {
    const { knex } = worlds.whole.database
    const found: Probe[] = []
    for (const probe of probes) {
      try {
        // Of no parents: it is only looked at, and nothing is read.
        await findByParents(knex, probe.resource, probe.query, () => {}, { column: 'id', ids: [] })
        found.push(probe)
      } catch (error) {
        if (!(error instanceof MangoError)) throw error
      }
    }
    return found
  }

  const ask = async (kind: KindName, asked: Asked): Promise<string> => {
    const text = await worlds.alike(kind, asked)
    assert.doesNotMatch(text, /QUERY_TOO_COMPLEX/)
    return text
  }

  it('is looked for in every field that can be selected on', () => {
    const missing = Object.entries(resources).flatMap(([resource, { fields }]) => {
      const own = rootQueries.filter(probe => probe.resource === resources[resource])
      const text = JSON.stringify(own.map(({ query }) => query))
      const names = Object.keys(fields).filter(name => !new RegExp(`"${name}[".]`).test(text))
      return names.map(name => `${resource}.${name}`)
    })
    assert.deepEqual(missing, [])
  })

  const readers = [...compared, ...(Object.keys(readsAs) as KindName[])]

  // By day three of them ask for everything: all others are looked at by what follows.
  for (const kind of everyNth(2, readers)) {
    it(`is in no answer to one that ${kind}, whatever is asked for with it, and all else is`, async () => {
      for (const field of lists) {
        const document = `{ ${field.name} { ${everythingOf(objectOf(field)!, 3)} } }`
        const { data } = JSON.parse(await ask(kind, { document, variables: {} }))
        if (field.name === 'accessTokens') continue
        const there = (worlds.writtenFor(kind)[tableOf(field.name)] ?? []).map(row => row.id)
        const listed: { id: string }[] = data[field.name]
        assert.deepEqual(
          listed.map(row => row.id),
          there.sort(),
          field.name,
        )
      }
      const { viewer } = schema.getQueryType()!.getFields()
      const document = `{ viewer { ${everythingOf(objectOf(viewer!)!, 3)} } }`
      assert.match(await ask(kind, { document, variables: {} }), new RegExp(worlds.tokens[kind].id))
    })

    it(`is not found under its id by one that ${kind}, and that id says no more than one that never was`, async () => {
      for (const list of lists) {
        const { name } = list
        const field = (argument: string) => `${name}(${argument}) { id }`
        const asked = hiddenIds.flatMap(id => [
          { field, query: { selector: { id } } },
          { field, query: { after: id, limit: 2 } },
        ])
        for (const document of together(asked)) await ask(kind, document)
        const id = hidden[name]
        if (!id) continue
        const another = fieldsOf(objectOf(list)!).find(field => field.name !== 'id' && !objectOf(field))!
        const [sorted] = together([{ field, query: { after: id, sort: [another.name] } }])
        const text = await ask(kind, sorted!)
        const seen = (worlds.writtenFor(kind)[tableOf(name)] ?? []).some(row => row.id === id)
        if (!seen) assert.match(text, new RegExp(`no row ${id} is visible`))
      }
    })
  }

  // With these every rule is met: organisations that are seen, an admin's webhooks, webhooks of one's own.
  for (const [n, kind] of (['sees one', 'sees one, admin', 'sees two others'] as const).entries()) {
    it(`is not selected on, sorted by or counted for one that ${kind}`, async () => {
      const asking = together(shareOf(rootQueries, engine, n, 3))
      for (const asked of asking) assert.doesNotMatch(await ask(kind, asked), /"errors"/)
    })

    if (kind === 'sees two others') continue
    it(`is in no nested list of one that ${kind}, however it is asked for`, async () => {
      const asking = together(shareOf(nestedQueries, engine, n, 2))
      for (const asked of asking) assert.doesNotMatch(await ask(kind, asked), /"errors"/)
    })
  }

  for (const [n, kind] of (['sees one', 'sees one, admin', 'sees two others', 'sees none'] as const).entries()) {
    it(`is in no count for one that ${kind}, whatever it counts by`, async () => {
      const counted = rootQueries.flatMap(({ resource, query }) => {
        const path = 'sort' in query ? Object.keys((query.sort as object[])[0]!)[0]! : undefined
        return path === undefined ? [] : [`counts(resource: ${resource.name}, by: ["${path}"]) { key count }`]
      })
      assert.ok(counted.length > 60)
      for (const part of partsOf(shareOf(counted, engine, n, 4))) {
        const fields = part.map((field, n) => `c${n}: ${field}`)
        const text = await ask(kind, { document: `{ ${fields.join('\n')} }`, variables: {} })
        assert.doesNotMatch(text, /"errors"/)
      }
    })
  }

  it('is no error where a query begins after the last row, whatever it selects on', async () => {
    const LAST = 'ffffffff-ffff-7fff-bfff-ffffffffffff'
    const asked = Object.entries(resources).flatMap(([name, { fields }]) =>
      Object.entries(fields).flatMap(([path, { kind }]) =>
        kind === 'derived'
          ? [{ $exists: true }, { $size: 1 }].map(condition => ({
              field: (argument: string) => `${name}(${argument}) { id }`,
              query: { selector: { [path]: condition }, after: LAST },
            }))
          : [],
      ),
    )
    assert.ok(asked.length >= 6)
    for (const document of together(asked)) assert.doesNotMatch(await ask('sees none', document), /"errors"/)
  })

  it('changes no answer to a random query', async () => {
    for (let n = 0; n < RANDOM_QUERIES; n++) await worlds.randomlyAlike(SEED + n)
  })

  it('is not in an explanation', async () => {
    const explained = rootQueries
      .filter((_, index) => index % atFullSize(2, 12) === 0)
      .map(({ resource, query }) => ({
        resource,
        field: (argument: string) =>
          `explain(resource: ${resource.name}, ${argument}) { sql bindings indexes statements rowsExamined }`,
        query,
      }))
    for (const asked of together(explained)) assert.doesNotMatch(await ask('sees one, admin', asked), /"errors"/)
  })

  // The arguments with which each mutation would do something for an admin of organisation A.
  const url = 'http://127.0.0.1:1/'
  const mutations: Record<string, Record<string, unknown>> = {
    createWebhook: { url, organisationIds: [idOf('organisation A')], projectIds: [idOf('project A1')] },
    upsertWebhook: {
      id: idOf('webhook named A'),
      url,
      organisationIds: [idOf('organisation A')],
      projectIds: [idOf('project A1')],
    },
    pingWebhook: { id: idOf('webhook named A') },
    rotateWebhookSecret: { id: idOf('webhook named A') },
    deleteWebhook: { id: idOf('webhook named A') },
    sendExample: { webhookId: idOf('webhook named A'), eventType: 'token_expired' },
    rehearse: { webhookId: idOf('webhook named A'), scene: 'ping' },
    submitProjectReport: { projectId: idOf('project A2'), quarter: '2026-1', submitterId: idOf('user 1') },
    approveProjectReport: { id: idOf('report A1 2026-2'), approverId: idOf('user 1'), approvedDate: '2026-11-02' },
    redeliver: { deliveryId: idOf('delivery submitted A to named A') },
    recoverDeliveries: { webhookId: idOf('webhook named A'), since: '2026-01-01T00:00:00Z' },
    redeliverMany: { webhookId: idOf('webhook named A'), query: {} },
    takeDeliveries: { webhookId: idOf('webhook named A'), limit: 1 },
    answerDeliveries: { answers: [{ deliveryId: idOf('delivery submitted A to named A'), attempt: 1, status: 200 }] },
    extendDeliveries: { deliveries: [{ deliveryId: idOf('delivery submitted A to named A'), attempt: 1 }] },
    upsertOrganisation: { id: idOf('organisation A'), name: `Org ${markOf('A')}` },
    upsertProject: { id: idOf('project A1'), organisationId: idOf('organisation A'), name: 'P' },
    upsertUser: { id: idOf('user 1'), name: 'User One' },
    createAccessToken: { name: 'new', permissions: ['read'], organisationIds: [idOf('organisation A')] },
    revokeAccessToken: { id: idOf('token sees one') },
    rotateSigningKey: {},
  }

  const ADMIN = ['upsertOrganisation', 'upsertProject', 'upsertUser', 'createAccessToken', 'revokeAccessToken']

  it('has its every mutation tried below', () => {
    assert.deepEqual(Object.keys(mutations), Object.keys(schema.getMutationType()!.getFields()))
  })

  /** A mutation answers no lists of rows. */
  const isAnswered = (field: Field): boolean => !(isList(field) && objectOf(field))

  const call = (name: string, given: Record<string, unknown>): Asked => {
    const field = schema.getMutationType()!.getFields()[name]!
    const args = field.args.filter(argument => argument.name in given)
    const answer = objectOf(field)
    const variables = args.map(argument => `$${argument.name}: ${argument.type}`).join(', ')
    const passed = args.map(argument => `${argument.name}: $${argument.name}`).join(', ')
    return {
      document:
        `mutation${variables && `(${variables})`} { ${name}${passed && `(${passed})`} ` +
        `${answer ? `{ ${everythingOf(answer, 1, isAnswered)} } ` : ''}}`,
      variables: given,
    }
  }

  const takesId = (name: string, argument: string): boolean =>
    getNamedType(
      schema
        .getMutationType()!
        .getFields()
        [name]!.args.find(it => it.name === argument)!.type,
    ).name === 'UUID'

  for (const kind of ['sees one', 'sees one, admin'] as const) {
    it(`cannot be named in a mutation of one that ${kind}, no more than what never was`, async () => {
      const { permissions }: Kind = kinds[kind]
      for (const [name, base] of Object.entries(mutations)) {
        if (!permissions.includes('admin') && ADMIN.includes(name)) continue
        for (const [argument, value] of Object.entries(base)) {
          if (!takesId(name, argument)) continue
          // Under an id that is not known to the caller these create. Where it is taken they cannot.
          const creates = argument === 'id' && ['upsertWebhook', 'upsertProject', 'upsertUser'].includes(name)
          if (creates) continue
          const unseen = [...hiddenIds, worlds.tokens['sees two others'].id, worlds.tokens['sees all'].id]
          for (const id of shareOf(unseen, engine, 0, 1)) {
            const given = { ...base, [argument]: Array.isArray(value) ? [...value, id] : id }
            const text = await ask(kind, call(name, given))
            assert.match(text, /"code": "(NOT_FOUND|FORBIDDEN)"/, text)
          }
        }
      }
    })
  }

  it('is told by no answer to a delivery that was not taken, and by no more time for it', async () => {
    for (const deliveryId of hiddenIds) {
      const attempt = { deliveryId, attempt: 1 }
      await ask('sees one', call('answerDeliveries', { answers: [{ ...attempt, status: 200 }] }))
      await ask('sees one', call('extendDeliveries', { deliveries: [attempt] }))
    }
  })

  it('is no place from which a redelivery begins, and is not counted by what it passes over', async () => {
    const places = [{ after: hidden.deliveries }, { after: hidden['old delivery'] }, { skip: 1 }, { skip: 3 }]
    for (const query of places) {
      const given = { webhookId: idOf('webhook narrowed to A'), query, dryRun: true }
      await ask('sees one, admin', call('redeliverMany', given))
    }
  })

  const AT_ONCE = 24
  let year = 2100
  const submission = (given: object = {}): Asked =>
    call('submitProjectReport', { ...mutations.submitProjectReport, quarter: `${year++}-1`, ...given })

  /** Has things asked one after the other, or all of them at once, with others that are answered beside them. */
  const ways: Record<string, (asked: Asked[], ask: (asked: Asked) => Promise<string>) => Promise<string[]>> = {
    async alone(asked, ask) {
      const texts: string[] = []
      for (const one of asked) texts.push(await ask(one))
      return texts
    },
    [`among ${AT_ONCE} at once`]: async (asked, ask) => {
      const others = Array.from({ length: AT_ONCE - asked.length }, () => submission())
      const texts = await Promise.all([...asked, ...others].map(ask))
      for (const text of texts.slice(asked.length)) assert.doesNotMatch(text, /"errors"/)
      return texts.slice(0, asked.length)
    },
  }

  for (const [way, askEach] of Object.entries(ways)) {
    for (const kind of ['sees one', 'sees one, admin'] as const) {
      const both = (asked: Asked[]): Promise<string[][]> =>
        Promise.all(
          [worlds.whole, worlds.leftFor(kind)].map(server => askEach(asked, one => worlds.textOf(server, kind, one))),
        )

      it(`cannot be named in a report that one that ${kind} submits ${way}, no more than what never was`, async () => {
        const unseen = [...hiddenIds, worlds.tokens['sees two others'].id, worlds.tokens['sees all'].id]
        const [inWhole, inLeft] = await both(
          unseen.flatMap(id => [submission({ projectId: id }), submission({ submitterId: id })]),
        )
        assert.deepEqual(inWhole, inLeft)
        for (const text of inWhole!) assert.match(text, /"code": "NOT_FOUND"/)
      })

      it(`is in nothing that comes of a report that one that ${kind} submits ${way}`, async () => {
        const submitted = ['project A1', 'project A2'].map(name => submission({ projectId: idOf(name) }))
        for (const text of (await both(submitted)).flat()) assert.doesNotMatch(text, /"errors"/)
        const quarters = submitted.map(({ variables }) => variables.quarter)
        const selector = { 'event.payload.projectReport.quarter': { $in: quarters } }
        const asked = {
          document: `query ($query: MangoQuery) { deliveries(query: $query) {
            status webhook { id } event { organisationId projectId payload deliveries { webhookId } } } }`,
          variables: { query: { selector, sort: ['event.projectId', 'webhookId'] } },
        }
        const [inWhole, inLeft] = await Promise.all(
          [worlds.whole, worlds.leftFor(kind)].map(async server => inOrder(await worlds.textOf(server, kind, asked))),
        )
        assert.equal(inWhole, inLeft)
        assert.match(inWhole!, new RegExp(idOf('webhook named A')))
        assert.deepEqual(JSON.parse(await worlds.textOf(worlds.whole, 'sees the third', asked)).data, {
          deliveries: [],
        })
      })
    }
  }

  /** An answer in which ids that were made just now, which differ, are told apart by their order. */
  const inOrder = (text: string): string => {
    const fresh = new Map<string, string>()
    return text.replaceAll(/[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}/g, id => {
      if (!fresh.has(id)) fresh.set(id, id.startsWith('0') ? `new ${fresh.size}` : id)
      return fresh.get(id)!
    })
  }

  it('is not changed by an upsert under its id, which answers NOT_FOUND', async () => {
    for (const [name, id, table] of [
      ['upsertWebhook', hidden.webhooks!, 'webhooks'],
      ['upsertProject', hidden.projects!, 'projects'],
    ] as const) {
      const kind = 'sees one, admin'
      const before = await worlds.whole.database.knex(table).where({ id })
      const text = await worlds.textOf(worlds.whole, kind, call(name, { ...mutations[name], id }))
      assert.match(text, /"code": "NOT_FOUND"/)
      assert.deepEqual(await worlds.whole.database.knex(table).where({ id }), before)
    }
  })

  // Last, since this changes both data sets of one token.
  it('is in no answer to a mutation of an admin that sees one, also not in the count of what it recovers', async () => {
    const kind = 'sees one, admin'
    const OTHERS = [hidden.webhooks!, idOf('webhook named A and S'), idOf('webhook unnamed all')]
    const calls: [string, Record<string, unknown>][] = [
      ['upsertWebhook', { id: hidden.webhooks!, status: 'disabled' }],
      ['upsertWebhook', { id: idOf('webhook named A and S'), status: 'disabled' }],
      ['upsertWebhook', { id: idOf('webhook project of A'), status: 'disabled' }],
      ['recoverDeliveries', { webhookId: idOf('webhook unnamed all'), since: '2026-01-01T00:00:00Z' }],
      ['recoverDeliveries', { webhookId: idOf('webhook unnamed one'), since: '2026-01-01T00:00:00Z' }],
      ...Object.entries(mutations).filter(([name]) => !/AccessToken|Webhook|redeliver$/.test(name)),
      ['revokeAccessToken', { id: worlds.tokens['sees one'].id }],
    ]
    for (const [name, given] of calls) {
      const asked = call(name, given)
      const inWhole = inOrder(await worlds.textOf(worlds.whole, kind, asked))
      assert.equal(inWhole, inOrder(await worlds.textOf(worlds.leftFor(kind), kind, asked)), name)
      assert.doesNotMatch(inWhole, /INTERNAL_SERVER_ERROR/)
      const isItsOwn =
        !/rotateSigningKey|upsertUser|takeDeliveries/.test(name) &&
        !OTHERS.includes(String(given.id ?? given.webhookId))
      assert.equal(/"errors"/.test(inWhole), !isItsOwn, inWhole)
    }
  })
})
