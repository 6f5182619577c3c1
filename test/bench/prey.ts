import { must } from './client.ts'
import type { Prey } from './documents.ts'
import { copyRow, idText, newIdLike, templateOf } from './seed.ts'
import { unlessSmallest } from './smallest.ts'
import { createToken, type World } from './world.ts'

const PROJECTS = unlessSmallest(300, 20)
const REPORTED_PROJECTS = unlessSmallest(100, 10)
const REPORTS_A_PROJECT = 90
const ORGANISATIONS = unlessSmallest(20_000, 500)
const DELIVERIES_A_WEBHOOK = unlessSmallest(1_317, 20)
const URL_BYTES = 2_000

/** Fills the database with objects to query, which belong to another tenant than the measured deliveries. */
export const seedPrey = async (
  { given: { database }, client, admin, tenant, server, settled }: World,
  { sees = 'one', ...size }: { deliveries: number; users: number; sees?: 'one' | 'all' | 'each another' },
): Promise<Prey> => {
  const url = server().url
  const ask = async (query: string, variables: object, as = admin) =>
    must(await client.send(url, as, query, variables)).id as string
  const organisationId = await ask('mutation { upsertOrganisation(name: "Crowd") { id } }', {})
  const limited = await createToken(client, url, admin, {
    name: 'crowd',
    permissions: ['read', 'webhooks', 'reports'],
    organisationIds: [organisationId],
  })
  const reader = await createToken(client, url, admin, { name: 'reader', permissions: ['read'] })
  const newOrganisation = (n: number) => ask(`mutation { upsertOrganisation(name: "Crowd ${n}") { id } }`, {})
  const crowdTokens = await Promise.all(
    Array.from({ length: 20 }, async (_, n) =>
      createToken(client, url, admin, {
        name: `crowd ${n}`,
        permissions: ['read'],
        ...(sees !== 'all' && { organisationIds: [sees === 'one' ? organisationId : await newOrganisation(n)] }),
      }),
    ),
  )
  const projectId = await ask('mutation ($id: UUID!) { upsertProject(organisationId: $id, name: "Crowd 0") { id } }', {
    id: organisationId,
  })
  const webhookUrl = (await webhookRow(database, tenant.webhookIds[0]!)).url
  const owedWebhookId = await ask(
    'mutation ($url: String!) { createWebhook(url: $url) { id } }',
    { url: `${webhookUrl}aside` },
    limited,
  )
  const reportId = await ask(
    `mutation ($projectId: UUID!, $submitterId: UUID!) {
      submitProjectReport(projectId: $projectId, quarter: "3000-1", submitterId: $submitterId) { id } }`,
    { projectId, submitterId: tenant.submitterId },
    limited,
  )
  await settled()

  // Copies the rows of Crowd, the only ones with an event so far.
  const copy = async (name: string, count: number, change: (n: number) => object, where = {}) => {
    const template = await templateOf(database, name, where)
    const key = 'id' in template ? 'id' : undefined
    const ids: unknown[] = []
    await copyRow(database, name, {
      template,
      count,
      change: n => {
        if (key) ids.push(newIdLike(template[key]))
        return { ...(key && { id: ids.at(-1) }), ...change(n) }
      },
    })
    return ids
  }
  const event = await templateOf(database, 'events', { type: 'project_report_quarterly_submitted' })
  const delivery = await templateOf(database, 'deliveries', { event_id: event.id as string })
  const crowd = { id: event.organisation_id as string }
  await copy('users', size.users, n => ({ name: `User number ${n} of the crowd` }))
  const organisations = await copy('organisations', ORGANISATIONS, n => ({ name: `Organisation ${n}` }), crowd)
  const projects = await copy('projects', PROJECTS - 1, n => ({ name: `Crowd ${n + 1}` }), {
    organisation_id: crowd.id,
  })
  const reports = REPORTED_PROJECTS * REPORTS_A_PROJECT
  await copy(
    'project_reports',
    reports,
    n => ({
      project_id: projects[n % REPORTED_PROJECTS],
      quarter: `${4000 + Math.floor(n / REPORTED_PROJECTS / 4)}-${(Math.floor(n / REPORTED_PROJECTS) % 4) + 1}`,
    }),
    { id: asTemplate(reportId, event.id) },
  )
  const { deliveries } = size
  const longUrl = `${webhookUrl}${'Abc-defé'.repeat(URL_BYTES / 8)}`.slice(0, URL_BYTES)
  const webhooks = await copy(
    'webhooks',
    Math.max(500, Math.ceil(deliveries / DELIVERIES_A_WEBHOOK)),
    n => ({ url: longUrl + n, status: 'disabled' }),
    { id: delivery.webhook_id as string },
  )
  const events = await copy(
    'events',
    Math.ceil(deliveries / 10),
    n => ({
      // The API makes one event a mutation: not all in one millisecond.
      created_at: Number(event.created_at) - n,
      payload: String(event.payload).replace(/"submitterName":"[^"]*"/, `"submitterName":"Person ${n} of the crowd"`),
    }),
    { id: event.id as string },
  )
  const deliveryIds = await copy(
    'deliveries',
    deliveries,
    n => ({ event_id: events[n % events.length], webhook_id: webhooks[Math.floor(n / DELIVERIES_A_WEBHOOK)] }),
    { id: delivery.id as string },
  )
  await copy('attempts', deliveries, n => ({ delivery_id: deliveryIds[n] }), { delivery_id: delivery.id as string })
  await database
    .knex('webhooks')
    .where({ id: delivery.webhook_id as string })
    .update({ url: `${webhookUrl}hanging`, created_at: 1 })
  await database.knex.raw(
    database.dialect.engine === 'sqlite'
      ? 'ANALYZE'
      : 'ANALYZE TABLE users, organisations, webhooks, events, deliveries, attempts',
  )
  return {
    reader,
    admin,
    limited,
    crowd: crowdTokens,
    organisationIds: [organisationId, ...organisations.slice(1).map(idText)],
    webhookId: idText(webhooks[0]),
    owedWebhookId,
  }
}

const asTemplate = (id: string, template: unknown): string =>
  (Buffer.isBuffer(template) ? Buffer.from(id.replaceAll('-', ''), 'hex') : id) as string

const webhookRow = async (database: World['given']['database'], id: string): Promise<{ url: string }> => {
  const row = await templateOf(database, 'webhooks')
  return (await templateOf(database, 'webhooks', { id: asTemplate(id, row.id) })) as { url: string }
}
