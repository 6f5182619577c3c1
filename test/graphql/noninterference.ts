import { createHash } from 'node:crypto'
import { type Database, insertMany } from '../../server/database/connect.ts'
import { createAccessToken } from '../../server/domain/access-tokens.ts'
import type { Sealer } from '../../server/keys/seal.ts'
import type { Credentials } from '../../shared/hmac.ts'
import type { Permission } from '../../shared/vocabulary.ts'
import { webhookRows } from '../support/webhooks.ts'

// The same installation twice: complete, and with only what one token sees. Both must answer the token alike.

/** Three organisations. Every text of one of them carries its mark. */
export const organisationNames = ['A', 'B', 'S'] as const
type Name = (typeof organisationNames)[number]
export const markOf = (name: Name): string => `zq${name}qz`

export type Kind = {
  permissions: Permission[]
  /** Undefined: all. */
  sees: readonly Name[] | undefined
}

const MOST: Permission[] = ['read', 'webhooks', 'reports']

/** The tokens that there are. All of them are in every data set. */
export const kinds = {
  'sees all': { permissions: MOST, sees: undefined },
  'sees one': { permissions: MOST, sees: ['A'] },
  'sees one, reads only': { permissions: ['read'], sees: ['A'] },
  'sees one, admin': { permissions: ['admin'], sees: ['A'] },
  'sees two': { permissions: MOST, sees: ['A', 'B'] },
  'sees two others': { permissions: MOST, sees: ['A', 'S'] },
  'sees the third': { permissions: MOST, sees: ['S'] },
  'sees none': { permissions: MOST, sees: [] },
} as const satisfies Record<string, Kind>
export type KindName = keyof typeof kinds

/** An id that is the same in every run and every data set. */
export const idOf = (name: string): string => {
  const hex = createHash('sha256').update(name).digest('hex')
  return `${hex.slice(0, 8)}-${hex.slice(8, 12)}-7${hex.slice(13, 16)}-8${hex.slice(17, 20)}-${hex.slice(20, 32)}`
}

type Row = Record<string, string | number | null>
/** A row, and whom it is there for: a token that sees `who`, which is called `kind`. */
type Placed = { table: string; row: Row; there: (who: Viewer) => boolean }
type Viewer = { kind: KindName; sees: ReadonlySet<string>; all: boolean }

const viewerOf = (kind: KindName): Viewer => {
  const { sees }: Kind = kinds[kind]
  return { kind, sees: new Set(sees), all: sees === undefined }
}

const someOf = (names: readonly string[]) => (who: Viewer) => who.all || names.some(name => who.sees.has(name))
const allOf = (names: readonly string[]) => (who: Viewer) => who.all || names.every(name => who.sees.has(name))

type WebhookOf = { made: KindName; organisations?: readonly Name[]; projects?: readonly Name[]; mark?: string }

/** By name; the projects they name are the first of an organisation. */
const webhooks: Record<string, WebhookOf> = {
  ...Object.fromEntries(
    organisationNames.flatMap(name => [
      [`named ${name}`, { made: 'sees all', organisations: [name], mark: markOf(name) }],
      [`project of ${name}`, { made: 'sees all', projects: [name], mark: markOf(name) }],
    ]),
  ),
  'unnamed one': { made: 'sees one' },
  'unnamed third': { made: 'sees the third', mark: markOf('S') },
  'unnamed others': { made: 'sees two others' },
  'unnamed all': { made: 'sees all' },
  'unnamed none': { made: 'sees none' },
  'named A and S': { made: 'sees two others', organisations: ['A', 'S'] },
  'named A, project of S': { made: 'sees all', organisations: ['A'], projects: ['S'] },
  // Its token has lost S since.
  'own of A and S': { made: 'sees two', organisations: ['A', 'S'] },
  // It once named S too, and has deliveries from then.
  'narrowed to A': { made: 'sees two others', organisations: ['A'] },
}

/** What a webhook can receive from; undefined: anything. */
const reach = ({ made, organisations = [], projects = [] }: WebhookOf): readonly Name[] | undefined =>
  organisations.length + projects.length > 0 ? [...organisations, ...projects] : (kinds[made] as Kind).sees

const webhookThere = (webhook: WebhookOf) => (who: Viewer) => {
  if (who.all || who.kind === webhook.made) return true
  const from = reach(webhook)
  return from !== undefined && from.length > 0 && allOf(from)(who)
}

type EventOf = { type: string; organisations: readonly Name[] | 'all'; project?: string; payload: object }

const events: Record<string, EventOf> = {
  ...Object.fromEntries(
    organisationNames.flatMap(name => {
      const project = `project ${name}1`
      const projectReport = { id: idOf(`report ${name}1 2026-1`), projectId: idOf(project), quarter: '2026-1' }
      const person = { submitterId: idOf('user 1'), submitterName: `Ada ${markOf(name)}` }
      return [
        [
          `submitted ${name}`,
          {
            type: 'project_report_quarterly_submitted',
            organisations: [name],
            project,
            payload: { projectReport: { ...projectReport, ...person } },
          },
        ],
        [
          `overdue ${name}`,
          {
            type: 'project_report_quarterly_overdue',
            organisations: [name],
            project,
            payload: { projectReport, note: markOf(name) },
          },
        ],
      ]
    }),
  ),
  // The project has gone from one organisation to the other since.
  'of A, project now in S': {
    type: 'project_report_quarterly_overdue',
    organisations: ['A'],
    project: 'project moved to S',
    payload: { projectReport: { projectId: idOf('project moved to S'), note: markOf('A') } },
  },
  'of S, project now in A': {
    type: 'project_report_quarterly_overdue',
    organisations: ['S'],
    project: 'project moved to A',
    payload: { projectReport: { projectId: idOf('project moved to A'), note: markOf('S') } },
  },
  'of A and S': {
    type: 'token_expired',
    organisations: ['A', 'S'],
    payload: { accessTokenId: idOf('token sees two others') },
  },
  'of all': { type: 'token_expired', organisations: 'all', payload: { accessTokenId: idOf('token sees all') } },
}

const eventThere = ({ organisations }: EventOf) =>
  organisations === 'all' ? (who: Viewer) => who.all || who.sees.size > 0 : someOf(organisations)

const deliveryStatuses = ['delivered', 'pending', 'rejected', 'dropped', 'cancelled'] as const

/** All rows there are, in an order in which they can be inserted; `now` is when everything was last used. */
const rowsAt = (now: number): Placed[] => {
  const placed: Placed[] = []
  const times = { created_at: now - 3_600_000, updated_at: now - 3_600_000 }
  const put = (table: string, there: Placed['there'], row: Row) => placed.push({ table, row, there })
  const always = () => true

  for (const name of organisationNames) {
    put('organisations', someOf([name]), { id: idOf(`organisation ${name}`), name: `Org ${markOf(name)}`, ...times })
  }
  const projects: [string, Name][] = [
    ...organisationNames.flatMap(name => [1, 2].map((n): [string, Name] => [`project ${name}${n}`, name])),
    ['project moved to S', 'S'],
    ['project moved to A', 'A'],
  ]
  for (const [project, name] of projects) {
    const organisation_id = idOf(`organisation ${name}`)
    put('projects', someOf([name]), {
      id: idOf(project),
      organisation_id,
      name: `${project} ${markOf(name)}`,
      ...times,
    })
  }
  for (const n of [1, 2]) put('users', always, { id: idOf(`user ${n}`), name: `User ${n}`, ...times })
  for (const name of organisationNames) {
    for (const [quarter, status] of [
      ['2026-1', 'approved'],
      ['2026-2', 'submitted'],
      ['2026-3', 'open'],
    ] as const) {
      put('project_reports', someOf([name]), {
        id: idOf(`report ${name}1 ${quarter}`),
        project_id: idOf(`project ${name}1`),
        quarter,
        due_date: '2026-10-30',
        status,
        submitter_id: status === 'open' ? null : idOf('user 1'),
        submitted_at: status === 'open' ? null : now - 5_000,
        approver_id: status === 'approved' ? idOf('user 2') : null,
        approved_date: status === 'approved' ? '2026-11-01' : null,
        overdue_at: status === 'open' ? now - 4_000 : null,
        ...times,
      })
    }
  }

  for (const [name, webhook] of Object.entries(webhooks)) {
    const there = webhookThere(webhook)
    const { made, organisations = [], projects = [], mark = '' } = webhook
    const id = idOf(`webhook ${name}`)
    const rows = webhookRows({
      id,
      accessTokenId: idOf(`token ${made}`),
      url: `http://127.0.0.1:1/${encodeURIComponent(name)}${mark}`,
      events: name === 'unnamed one' ? ['token_expired'] : [],
      organisationIds: organisations.map(to => idOf(`organisation ${to}`)),
      projectIds: projects.map(to => idOf(`project ${to}1`)),
      ...(name.startsWith('project') && { status: 'inactive', statusReason: `It answered 429 ${mark}` }),
      createdAt: times.created_at,
    })
    for (const row of rows.webhooks) put('webhooks', there, row)
    for (const row of rows.webhook_events) put('webhook_events', there, row)
    for (const [n, to] of organisations.entries()) {
      put('webhook_organisations', who => there(who) && someOf([to])(who), rows.webhook_organisations[n]!)
    }
    for (const [n, to] of projects.entries()) {
      put('webhook_projects', who => there(who) && someOf([to])(who), {
        ...rows.webhook_projects[n]!,
        organisation_id: idOf(`organisation ${to}`),
      })
    }
    const ping = idOf(`ping ${name}`)
    put('events', there, { id: ping, type: 'ping', payload: '{}', created_at: now - 3_000 })
    deliver(`ping ${name}`, { id: ping, type: 'ping' }, id, there, `pong ${mark}`)
  }

  for (const [name, event] of Object.entries(events)) {
    const { type, organisations, project, payload } = event
    const there = eventThere(event)
    const id = idOf(`event ${name}`)
    const one = organisations !== 'all' && organisations.length === 1
    put('events', there, {
      id,
      type,
      organisation_id: one ? idOf(`organisation ${organisations[0]}`) : null,
      project_id: project ? idOf(project) : null,
      all_organisations: organisations === 'all' ? 1 : 0,
      payload: JSON.stringify(payload),
      created_at: now - 2_000,
    })
    if (organisations !== 'all' && !one) {
      for (const to of organisations) {
        put('event_organisations', someOf([to]), { event_id: id, organisation_id: idOf(`organisation ${to}`) })
      }
    }
    for (const [webhookName, webhook] of Object.entries(webhooks)) {
      const from = webhookName === 'narrowed to A' ? ['A', 'S'] : (reach(webhook) ?? organisationNames)
      const marks: readonly string[] = organisations === 'all' ? [] : organisations
      if (organisations !== 'all' && !marks.some(to => (from as readonly string[]).includes(to))) continue
      const visible = (who: Viewer) => webhookThere(webhook)(who) && there(who)
      const mark = one ? markOf(organisations[0]!) : ''
      const delivery = `${name} to ${webhookName}`
      deliver(delivery, { id, type }, idOf(`webhook ${webhookName}`), visible, `thanks ${mark}`)
      // One line for each webhook. Where S is hidden, so is the delivery that has the turn.
      put('ordered_deliveries', visible, {
        delivery_id: idOf(`delivery ${delivery}`),
        line: idOf(`webhook ${webhookName}`),
        event_id: id,
        event_at: now - 2_000,
        waits: name === 'submitted S' ? 0 : 1,
      })
    }
  }
  return placed

  function deliver(
    name: string,
    event: { id: string; type: string },
    webhook_id: string,
    there: Placed['there'],
    answer: string,
  ) {
    const id = idOf(`delivery ${name}`)
    const status = deliveryStatuses[id.charCodeAt(0) % deliveryStatuses.length]!
    const pending = status === 'pending'
    put('deliveries', there, {
      id,
      event_id: event.id,
      webhook_id,
      event_type: event.type,
      status,
      attempt_count: 2,
      next_attempt_at: pending ? now + 60_000 : null,
      created_at: now - 1_500,
      finished_at: pending ? null : now - 1_000 - (id.charCodeAt(1) % 7),
    })
    for (const number of [1, 2]) {
      put('attempts', there, {
        delivery_id: id,
        number,
        started_at: now - 1_000,
        duration_ms: number,
        status_code: 500,
        response: answer,
      })
    }
    // Far from due: nothing is sent while the data sets are compared.
    if (pending)
      put('delivery_queue', there, { delivery_id: id, event_id: event.id, webhook_id, due_at: now + 3_600_000 })
  }
}

export type Tokens = Record<KindName, Credentials & { id: string }>

/** Makes the tokens in the database of the whole data set, and returns them with their rows. */
export const createTokens = async (database: Database, sealer: Sealer, now: number) => {
  const tokens = {} as Tokens
  for (const [name, { permissions, sees }] of Object.entries(kinds) as [KindName, Kind][]) {
    tokens[name] = await database.transaction(trx =>
      createAccessToken(
        trx,
        sealer,
        { name: `token ${name}`, permissions, ...(sees && { organisationIds: [] }) },
        now - 1_000,
      ),
    )
  }
  const rows: Row[] = await database
    .knex('access_tokens')
    .update({ last_used_at: now })
    .then(() => database.knex('access_tokens'))
  return { tokens, rows, permissions: (await database.knex('access_token_permissions')) as Row[] }
}

/**
 * Fills a database with the whole data set, or with only the rows that one token sees. Of a token that it does not see,
 * only the creation of a webhook remains.
 */
export const fill = async (
  database: Database,
  { tokens, rows, permissions }: Awaited<ReturnType<typeof createTokens>>,
  now: number,
  left?: KindName,
): Promise<Record<string, Row[]>> => {
  const who = left && viewerOf(left)
  const names = new Map(Object.entries(tokens).map(([name, { id }]) => [id, name as KindName]))
  const isSeen = (name: KindName) => {
    const { sees }: Kind = kinds[name]
    return !who || name === who.kind || (sees !== undefined && allOf(sees)(who))
  }
  const tokenIds = new Map((Object.keys(kinds) as KindName[]).map(name => [idOf(`token ${name}`), tokens[name].id]))

  const written: Record<string, Row[]> = {}
  const inOrder: { table: string; rows: Row[] }[] = []
  const insert = (table: string, row: Row) => {
    if (inOrder.at(-1)?.table !== table) inOrder.push({ table, rows: [] })
    inOrder.at(-1)!.rows.push(row)
    written[table] = [...(written[table] ?? []), row]
  }
  if (left) {
    for (const row of rows) {
      const name = names.get(row.id as string)
      if (name) insert('access_tokens', { ...row, ...(!isSeen(name) && { sees_all_organisations: 1 }) })
    }
    for (const row of permissions) if (names.has(row.access_token_id as string)) insert('access_token_permissions', row)
  }
  for (const { table, row, there } of rowsAt(now)) {
    if (who && !there(who)) continue
    // What refers to a token by the id it has here.
    const text = JSON.stringify(row)
    const changed = [...tokenIds].reduce((changed, [from, to]) => changed.replaceAll(from, to), text)
    insert(table, JSON.parse(changed))
    if (table !== 'organisations') continue
    const name = organisationNames.find(name => idOf(`organisation ${name}`) === row.id)!
    for (const kind of Object.keys(kinds) as KindName[]) {
      const { sees }: Kind = kinds[kind]
      if (!isSeen(kind) || !sees?.includes(name)) continue
      insert('access_token_organisations', { access_token_id: tokens[kind].id, organisation_id: row.id! })
    }
  }
  await database.transaction(async trx => {
    for (const { table, rows } of inOrder) await insertMany(trx, table, rows)
  })
  return written
}
