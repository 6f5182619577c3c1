import { must } from './client.ts'
import { asIdLike, copyRow, idText, newIdLike, templateOf } from './seed.ts'
import { createToken, type World } from './world.ts'

/**
 * Gives another tenant a number of webhooks whose endpoint never answers, and makes deliveries due for each. Returns
 * the ids of the webhooks, their url and the tenant's token. The first delivery is made over the API, and is in flight;
 * the others are copies of it.
 */
export const makeDue = async (
  { given: { database }, client, admin, tenant, server }: World,
  { webhooks, deliveries, path = 'hanging' }: { webhooks: number; deliveries: number; path?: string },
) => {
  const { knex } = database
  const { url } = server()
  const mutate = async (query: string, variables: object, as = admin): Promise<string> =>
    must(await client.send(url, as, query, variables)).id as string
  const organisationId = await mutate('mutation { upsertOrganisation(name: "Crowd") { id } }', {})
  const crowd = await createToken(client, url, admin, {
    name: 'crowd',
    permissions: ['read', 'webhooks', 'reports'],
    organisationIds: [organisationId],
  })
  const projectId = await mutate('mutation ($id: UUID!) { upsertProject(organisationId: $id, name: "Crowd") { id } }', {
    id: organisationId,
  })
  const anyWebhook = await templateOf(database, 'webhooks')
  const webhookId = await mutate(
    'mutation ($url: String!) { createWebhook(url: $url) { id } }',
    { url: `${anyWebhook.url}aside` },
    crowd,
  )
  // The endpoint has answered its ping, and hangs from now on.
  const hangingUrl = `${anyWebhook.url}${path}`
  const id = asIdLike(anyWebhook.id, webhookId) as string
  await knex('webhooks').where({ id }).update({ url: hangingUrl })
  const template = await templateOf(database, 'webhooks', { id })
  const ids: unknown[] = [id]
  await copyRow(database, 'webhooks', {
    template,
    count: webhooks - 1,
    change: () => {
      const copy = newIdLike(id)
      ids.push(copy)
      return { id: copy }
    },
  })
  if (deliveries > 0) {
    await mutate(
      `mutation ($projectId: UUID!, $submitterId: UUID!) {
        submitProjectReport(projectId: $projectId, quarter: "3000-1", submitterId: $submitterId) { id } }`,
      { projectId, submitterId: tenant.submitterId },
      crowd,
    )
    const queued = await templateOf(database, 'delivery_queue', { webhook_id: id })
    const delivery = await templateOf(database, 'deliveries', { id: queued.delivery_id as string })
    const now = Date.now()
    const more: unknown[] = []
    await copyRow(database, 'deliveries', {
      template: delivery,
      count: webhooks * deliveries,
      change: n => {
        const copy = newIdLike(delivery.id)
        more.push(copy)
        return { id: copy, webhook_id: ids[n % ids.length], next_attempt_at: now }
      },
    })
    await copyRow(database, 'delivery_queue', {
      template: { ...queued, due_at: now, lease: null, attempt: 0 },
      count: webhooks * deliveries,
      change: n => ({ delivery_id: more[n], webhook_id: ids[n % ids.length] }),
    })
  }
  return { token: crowd, webhookIds: ids.map(idText), url: hangingUrl }
}
