import { randomUUID } from 'node:crypto'
import { connect } from 'node:net'
import { setTimeout as wait } from 'node:timers/promises'
import type { Credentials } from '../../shared/hmac.ts'
import { signed } from './client.ts'

// The worst requests that can be found within the limits. Add what you find: a name, who asks, and what.

/** The existing objects; ids in the API's form. */
export type Prey = {
  /** `read` of everything. */
  reader: Credentials
  admin: Credentials
  /** `read`, `webhooks` and `reports` of one organisation, which has 300 projects. */
  limited: Credentials
  /** Twenty with `read` of the same organisation. */
  crowd: Credentials[]
  organisationIds: string[]
  /** Has 1,317 deliveries. */
  webhookId: string
  /** Active, with a hanging endpoint, and no deliveries. */
  owedWebhookId: string
}

export type Sent = { as: Credentials; query: string; variables?: object }
export type Attack = {
  name: string
  /** The number sent at once, each over its own connection. */
  requests?: Sent[]
  /** When the clients hang up. */
  hangUpMs?: number
  /** Changes something, so it is not repeated during the window. */
  isOnce?: true
  /** An attack that is no GraphQL request; returns its result in a few words. */
  run?: (url: string) => Promise<string>
  /** It strikes a server that does nothing (`bare-server.ts`): what others feel then is the machine's and its own. */
  isElsewhere?: true
}

const alsoElsewhere = (attack: Attack): Attack[] => [
  attack,
  { ...attack, name: `${attack.name}, of a bare server`, isElsewhere: true },
]

const times = <T>(count: number, make: (n: number) => T): T[] => Array.from({ length: count }, (_, n) => make(n))
const lists = (count: number, list: (n: number) => string): string =>
  `{ ${times(count, n => `a${n}: ${list(n)}`).join(' ')} }`
const USERS = 'query ($selector: MangoSelector) { users(query: {selector: $selector, limit: 10}) { id } }'

export const attacks = (prey: Prey): Attack[] => {
  const { reader, admin, limited, crowd, organisationIds, webhookId, owedWebhookId } = prey
  const one = (name: string, query: string, variables?: object, as = reader): Attack => ({
    name,
    requests: [{ as, query, ...(variables && { variables }) }],
  })
  return [
    one(
      '300 projects, thrice nested in one organisation',
      '{projects{organisation{projects{organisation{projects{id}}}}}}',
      {},
      limited,
    ),
    one('1,317 deliveries under each of 1,317', DELIVERIES_OF_DELIVERIES, { webhookId }),
    one(
      '100 × 100 × 90 under limit',
      `{ projects(query: {selector: {organisationId: "${organisationIds[0]}"}, limit: 100}) { organisation {
         projects(query: {limit: 100}) { projectReports(query: {limit: 90}) { id } } } } }`,
    ),
    one('990 patterns (?i)\\pL{990}0', USERS, {
      selector: { name: { $or: times(990, () => ({ $regex: '(?i)\\pL{990}0' })) } },
    }),
    one('990 patterns, each another', USERS, {
      selector: { name: { $or: times(990, n => ({ $regex: `(?i)\\pL{${n + 11}}0` })) } },
    }),
    one(
      '45 × users(limit: 10000)',
      lists(45, () => 'users(query: {limit: 10000}) { id name }'),
    ),
    one(
      '50 sorted lists with patterns',
      lists(
        50,
        n =>
          `users(query: {sort: [{name: "desc"}], limit: 100, selector: {name: {_regex: "[^ ]+ ${n}[0-9]*7$"}}}) { id }`,
      ),
    ),
    { ...one('a token of 20,000 organisationIds', CREATE_TOKEN, { organisationIds }, admin), isOnce: true },
    one(
      'a token of 20,000 organisationIds that are not',
      CREATE_TOKEN,
      { organisationIds: times(20_000, () => randomUUID()) },
      admin,
    ),
    one(
      'a webhook of 20,000 organisationIds that are not',
      CREATE_WEBHOOK,
      { organisationIds: times(20_000, () => randomUUID()) },
      admin,
    ),
    {
      ...one(
        '50 × a webhook given 20,000 organisationIds',
        `mutation ($id: UUID!, $organisationIds: [UUID!]) { ${times(
          50,
          n => `a${n}: upsertWebhook(id: $id, organisationIds: $organisationIds) { id }`,
        ).join(' ')} }`,
        { id: webhookId, organisationIds },
        admin,
      ),
      isOnce: true,
    },
    {
      name: '20 tokens with 10 patterns each that take long in one row',
      requests: [...crowd, ...crowd].map(as => ({
        as,
        query: WEBHOOKS,
        variables: { selector: { $or: times(10, n => ({ url: { $regex: `A.{91${n}}[x-z]` } })) } },
      })),
    },
    {
      name: '14 patterns over all users, gone after 1 s',
      requests: times(14, n => ({
        as: reader,
        query: USERS,
        variables: { selector: { name: { $regex: `(${'[a-z0-9 ]*'.repeat(20)}|x{3,${n + 3}})!!$` } } },
      })),
      hangUpMs: 1_000,
    },
    {
      ...one(
        '50 × fan-out, gone after 0.2 s',
        '{projects{organisation{projects{organisation{projects{id}}}}}}',
        {},
        limited,
      ),
      hangUpMs: 200,
    },
    one('50 patterns over 2 kB urls', WEBHOOKS, {
      selector: { $or: times(50, n => ({ url: { $regex: `(?i)(\\pL+[^z]?){${n + 20}}!$` } })) },
    }),
    one("50 patterns over deliveries' 2 kB urls", DELIVERIES, {
      selector: { $or: times(50, n => ({ 'webhook.url': { $regex: `(?i)(\\pL+[^z]?){${n + 20}}!$` } })) },
    }),
    one('a pattern over every payload', EVENTS, {
      selector: { 'payload.projectReport.submitterName': { $regex: '(?i)(\\pL+ ?.){5,100}\\D$' } },
    }),
    one('9,900 ids in $in and $nin', USERS, {
      selector: {
        $and: [{ id: { $in: organisationIds.slice(0, 4_950) } }, { id: { $nin: organisationIds.slice(-4_950) } }],
      },
    }),
    one('990 conditions in $or', USERS, { selector: { name: { $or: times(990, n => ({ $gt: `~${n}` })) } } }),
    one('$nor of $not, 30 levels', USERS, { selector: nested(10) }),
    one('every delivery, sorted by what no index has', SORTED, { skip: 5_000 }),
    one('10,000 deliveries with event, webhook, health and attempts', WIDE),
    one(
      '10,000 deliveries with their events, thrice',
      `{ deliveries(query: {limit: 10000}) { ${times(3, n => `a${n}: event { id }`).join(' ')} } }`,
    ),
    one('10,000 deliveries with event, webhook and attempts', COMPLETE),
    one('40 fields of 10,000 users', `{ users(query: {limit: 10000}) { ${times(40, n => `a${n}: id`).join(' ')} } }`),
    one(
      '50 × the last delivery by a field of its event',
      lists(
        50,
        n =>
          `deliveries(query: {sort: [{finishedAt: "desc"}], skip: ${n}, limit: 1, selector: {event: {payload: ` +
          `{projectReport: {submitterName: {_beginsWith: "!${n}"}}}}}}) { id }`,
      ),
    ),
    one(
      '50 × tokens with their organisations',
      lists(50, () => 'accessTokens { organisationIds }'),
      {},
      admin,
    ),
    one(
      '50 × webhooks with their health',
      lists(50, () => 'webhooks { health { pending delivered rejected dropped cancelled } lastDeliveryAt }'),
    ),
    one(
      '12 levels up and down',
      `{ deliveries(query: {limit: 50}) { event { deliveries(query: {limit: 10}) { webhook {
         deliveries(query: {limit: 10}) { event { deliveries(query: {limit: 10}) { webhook {
         deliveries(query: {limit: 10}) { id } } } } } } } } } }`,
    ),
    one('one field 3,900 times', `{ users(query: {limit: 10000}) { ${'id '.repeat(3_900)}} }`),
    one(
      '45 × introspection',
      lists(
        45,
        () => '__schema { types { name fields { name args { name type { name ofType { name ofType { name } } } } } } }',
      ),
    ),
    one(
      '45 × explain with patterns',
      lists(
        45,
        n =>
          `explain(resource: users, query: {selector: {name: {_regex: "(?i)\\\\pL{${900 + n}}0"}}}) { rowsExamined }`,
      ),
    ),
    one('counts of every delivery by the url of its webhook', COUNTS),
    { name: '20 answers of 20 MB that nobody reads', run: url => unread(url, reader, 20) },
    ...alsoElsewhere({ name: '300 unsigned bodies without their last byte', run: url => withheld(url, 300) }),
    ...alsoElsewhere({
      name: '200 clients at once',
      run: url =>
        subscribed(
          url,
          reader,
          times(200, () => ({ query: '{ viewer { id } }' })),
        ),
    }),
    {
      name: '200 subscriptions with patterns',
      run: url =>
        subscribed(
          url,
          reader,
          times(200, n => ({ query: SUBSCRIPTION, variables: { selector: patterns(n) } })),
        ),
    },
    {
      name: '20 subscriptions to lists in lists',
      run: url =>
        subscribed(
          url,
          reader,
          times(20, n => ({ query: LISTS_SUBSCRIBED(n) })),
        ),
    },
    {
      name: '20 subscriptions to lists with patterns',
      run: url =>
        subscribed(
          url,
          reader,
          times(20, n => ({ query: SEARCHES_SUBSCRIBED(n) })),
        ),
    },
    { ...one('a recovery of every event', RECOVER, { webhookId: owedWebhookId }, admin), isOnce: true },
    one(
      'a dry run of sending again what patterns match',
      REDELIVER,
      {
        webhookId: owedWebhookId,
        query: {
          selector: {
            $or: times(40, n => ({ event: { payload: { note: { $regex: `(?i)(\\pL+[^z]?){${n + 20}}!$` } } } })),
          },
        },
      },
      admin,
    ),
    one(
      'a dry run of sending all again, sorted by what no index has',
      REDELIVER,
      {
        webhookId: owedWebhookId,
        query: { sort: [{ attemptCount: 'desc' }] },
      },
      admin,
    ),
    { ...one('its webhook disabled', DISABLE, { id: owedWebhookId }, admin), isOnce: true },
  ]
}

const DELIVERIES_OF_DELIVERIES = `query ($webhookId: UUID!) {
  deliveries(query: {selector: {webhookId: $webhookId}}) { webhook { deliveries { id } } } }`
const WEBHOOKS = 'query ($selector: MangoSelector) { webhooks(query: {selector: $selector, limit: 10}) { id } }'
const DELIVERIES = 'query ($selector: MangoSelector) { deliveries(query: {selector: $selector, limit: 10}) { id } }'
const EVENTS = 'query ($selector: MangoSelector) { events(query: {selector: $selector, limit: 10}) { id } }'
const SORTED = `query ($skip: Int) {
  deliveries(query: {sort: [{attemptCount: "desc"}, {finishedAt: "asc"}], skip: $skip, limit: 10000}) {
    id finishedAt } }`
const WIDE = `{ deliveries(query: {limit: 10000}) { id event { payload } attempts { number response }
  webhook { url organisationIds projectIds health { pending delivered } } } }`
const COMPLETE = `{ deliveries(query: {limit: 10000}) { id eventType eventId status attemptCount createdAt finishedAt
  event { id type } webhook { id status } attempts { number statusCode durationMs } } }`
const COUNTS = '{ counts(resource: deliveries, by: ["webhook.url"]) { key count } }'
const CREATE_TOKEN = `mutation ($organisationIds: [UUID!]) {
  createAccessToken(name: "crowd", permissions: [read], organisationIds: $organisationIds) { apiKey } }`
const CREATE_WEBHOOK = `mutation ($organisationIds: [UUID!]) {
  createWebhook(url: "http://127.0.0.1:9/", organisationIds: $organisationIds) { id } }`
const RECOVER = `mutation ($webhookId: UUID!) {
  recoverDeliveries(webhookId: $webhookId, since: "1971-01-01T00:00:00Z") { __typename } }`
const REDELIVER = `mutation ($webhookId: UUID!, $query: MangoQuery!) {
  redeliverMany(webhookId: $webhookId, query: $query, dryRun: true) { queued } }`
const DISABLE = 'mutation ($id: UUID!) { upsertWebhook(id: $id, status: disabled) { status } }'

const SUBSCRIPTION = 'subscription ($selector: MangoSelector) { deliveries(selector: $selector) { id status } }'
const patterns = (n: number): object => ({
  $or: times(20, m => ({ webhook: { url: { $regex: `(?i)(\\pL+[^z]?){${(n % 20) + m}}!$` } }, id: { $ne: `${n}` } })),
})
const LISTS_SUBSCRIBED = (n: number): string =>
  `subscription { deliveries { a${n}: id event { organisation { projects { organisation { projects { id
     projectReports { id } } } } } } } }`
const SEARCHES_SUBSCRIBED = (n: number): string =>
  `subscription { deliveries { a${n}: id webhook { ${times(
    20,
    m => `a${m}: deliveries(query: {
     selector: {event: {payload: {note: {_regex: "(?i)\\\\pL{${m + 11}}0"}}}}, sort: [{attemptCount: "desc"}]}) { id }`,
  ).join(' ')} } } }`

const nested = (levels: number): object => {
  let selector: object = { name: 'x' }
  for (let n = 0; n < levels; n++) selector = { $nor: [{ $not: selector }] }
  return selector
}

const HELD_MS = 4_000

/** Sends requests over raw connections, and reads nothing. */
const unread = async (base: string, as: Credentials, count: number): Promise<string> => {
  const sockets = times(count, () => {
    const { url, options } = signed(
      base,
      as,
      `{ users(query: {limit: 10000}) { ${times(45, n => `a${n}: id`).join(' ')} } }`,
      {},
    )
    const socket = connect(Number(url.port), url.hostname)
    socket.on('error', () => {})
    const headers = Object.entries(options.headers).map(([name, value]) => `${name}: ${value}\r\n`)
    const length = Buffer.byteLength(options.body)
    socket.write(`POST /graphql HTTP/1.1\r\n${headers.join('')}content-length: ${length}\r\n\r\n${options.body}`)
    return socket.pause()
  })
  await wait(HELD_MS)
  const open = sockets.filter(socket => !socket.destroyed && socket.readyState === 'open').length
  for (const socket of sockets) socket.destroy()
  return `${open} still open after ${HELD_MS / 1000} s`
}

/** Opens subscriptions, and reads what they answer. */
const subscribed = async (base: string, as: Credentials, all: Omit<Sent, 'as'>[]): Promise<string> => {
  const gone = AbortSignal.timeout(HELD_MS)
  let bytes = 0
  const said = new Map<string, number>()
  const say = (what: string) => said.set(what, (said.get(what) ?? 0) + 1)
  const subscribe = async ({ query, variables }: Omit<Sent, 'as'>): Promise<void> => {
    const { url, options } = signed(base, as, query, variables ?? {})
    const headers = { ...options.headers, accept: 'text/event-stream' }
    let last = ''
    try {
      const answer = await fetch(url, { ...options, headers, signal: gone })
      for await (const chunk of answer.body!) {
        bytes += chunk.length
        last = Buffer.from(chunk).toString('latin1')
      }
      say(/"code":"(\w+)"/.exec(last)?.[1] ?? 'ended')
    } catch (error) {
      say((error as Error).name === 'TimeoutError' ? 'open' : String(error))
    }
  }
  await Promise.all(all.map(subscribe))
  return `${[...said].map(([what, count]) => `${count} × ${what}`).join(', ')}, ${(bytes / 1e6).toFixed(2)} MB`
}

const BODY_BYTES = 1_048_576

/** Sends bodies of 1 MiB, unsigned, but for their last byte. */
const withheld = async (base: string, count: number): Promise<string> => {
  const { hostname, port, host } = new URL(base)
  const body = Buffer.alloc(BODY_BYTES - 1, ' ')
  const sockets = times(count, () => {
    const socket = connect(Number(port), hostname)
    socket.on('error', () => {})
    socket.write(
      `POST /graphql HTTP/1.1\r\nhost: ${host}\r\ncontent-type: application/json\r\ncontent-length: ` +
        `${BODY_BYTES}\r\n\r\n`,
    )
    socket.write(body)
    return socket
  })
  await wait(HELD_MS)
  const open = sockets.filter(socket => !socket.destroyed && socket.readyState === 'open').length
  for (const socket of sockets) socket.destroy()
  return `${open} still open after ${HELD_MS / 1000} s`
}
