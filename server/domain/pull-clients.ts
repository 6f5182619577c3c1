import { marks, rows, run, type Sql } from '../database/connect.ts'
import { dialectOf } from '../database/dialect.ts'
import { DEAD_MS } from '../keys/master-keys.ts'
import type { Field } from '../mango/resource.ts'
import type { Json } from '../mango/selector.ts'

// Which clients wait for the deliveries of which webhook, as processes write it: a row for each webhook and process.
// The rows of a process that no longer reports count for nothing.

/** Clients of one webhook at one process: how many wait, and who came last. */
export type Clients = { waiting: number; token: { id: string; name: string }; address: string | undefined }

type ClientsRow = { webhook_id: string; process_id: string; waiting: number; latest: string }

const ROWS_A_STATEMENT = 500

const NOBODY = { waiting: 0, accessTokenId: null, accessTokenName: null, remoteAddress: null }

/** For each webhook, the clients that wait for its deliveries at all processes. */
export const clientsOf = (): Extract<Field, { kind: 'derived' }> => ({
  kind: 'derived',
  object: {
    name: 'clients',
    table: 'pull_clients',
    fields: {
      waiting: { kind: 'column', column: 'waiting', type: 'integer' },
      accessTokenId: { kind: 'column', column: 'accessTokenId', type: 'uuid', nullable: true },
      accessTokenName: { kind: 'column', column: 'accessTokenName', type: 'string', nullable: true },
      remoteAddress: { kind: 'column', column: 'remoteAddress', type: 'string', nullable: true },
    },
  },
  load: async (source, webhookIds) => {
    const found = await living(source.connection, webhookIds)
    const byWebhook = Map.groupBy(found, row => row.webhook_id)
    return new Map(
      webhookIds.map((id): [string, Json] => {
        const own = byWebhook.get(id)
        if (!own) return [id, NOBODY]
        const { token, address }: Clients = JSON.parse(own[0]!.latest)
        const waiting = own.reduce((sum, row) => sum + row.waiting, 0)
        return [id, { waiting, accessTokenId: token.id, accessTokenName: token.name, remoteAddress: address ?? null }]
      }),
    )
  },
})

/** The clients that wait, of any webhook, those of the most first. */
export const waitingClients = async (sql: Sql): Promise<(Clients & { webhookId: string })[]> =>
  (await living(sql)).map(row => ({ ...(JSON.parse(row.latest) as Clients), webhookId: row.webhook_id }))

const living = (sql: Sql, webhookIds?: string[]): Promise<ClientsRow[]> =>
  rows<ClientsRow>(
    sql,
    `SELECT c.* FROM pull_clients c JOIN processes p ON p.id = c.process_id
     WHERE p.seen_at > ${dialectOf(sql).nowMs} - ${DEAD_MS}
       ${webhookIds ? `AND c.webhook_id IN (${marks(webhookIds)})` : ''}
     ORDER BY c.waiting DESC, c.process_id`,
    webhookIds ?? [],
  )

/** Writes how many clients wait at a process, for some webhooks. */
export const writeClients = async (sql: Sql, processId: string, clients: [string, Clients][]): Promise<void> => {
  for (let from = 0; from < clients.length; from += ROWS_A_STATEMENT) {
    const some = clients.slice(from, from + ROWS_A_STATEMENT)
    const changes = dialectOf(sql).onDuplicateUpdate(['webhook_id', 'process_id'], ['waiting', 'latest'])
    await run(
      sql,
      `INSERT INTO pull_clients (webhook_id, process_id, waiting, latest)
       VALUES ${some.map(() => '(?, ?, ?, ?)').join(', ')}${changes}`,
      some.flatMap(([id, one]) => [id, processId, one.waiting, JSON.stringify(one)]),
    )
  }
}

/** Writes that no client waits at a process any more: for some webhooks, or for any. */
export const removeClients = async (sql: Sql, processId: string, webhookIds?: string[]): Promise<void> => {
  if (!webhookIds) await run(sql, 'DELETE FROM pull_clients WHERE process_id = ?', [processId])
  for (let from = 0; from < (webhookIds?.length ?? 0); from += ROWS_A_STATEMENT) {
    const some = webhookIds!.slice(from, from + ROWS_A_STATEMENT)
    const sqlText = `DELETE FROM pull_clients WHERE process_id = ? AND webhook_id IN (${marks(some)})`
    await run(sql, sqlText, [processId, ...some])
  }
}

/** Deletes the rows of processes that are gone. */
export const forgetClients = (sql: Sql): Promise<number> =>
  run(sql, 'DELETE FROM pull_clients WHERE process_id NOT IN (SELECT id FROM processes)', [])
