import { insertMany, marks, rows, type Sql } from '../database/connect.ts'
import { type AccessToken, may } from './permissions.ts'

// A receiver takes deliveries of the webhooks whose ids it was given. Whoever could take the id of a webhook that is
// gone could send examples and pings to its receiver. So an id that existed belongs to the token that used it, for good
// (docs/decisions/0021-chosen-ids.md).

type Owned = { access_token_id: string; deleted_at: number | null }

/** Whether the id belongs to a webhook, present or past, visible or not, that the token cannot create anew. */
export const isTaken = async (sql: Sql, token: AccessToken, id: string): Promise<boolean> => {
  const [present] = await rows<Owned>(sql, 'SELECT access_token_id, deleted_at FROM webhooks WHERE id = ?', [id])
  if (present) return !mayRenew(token, present)
  const [ended] = await rows<Owned>(
    sql,
    'SELECT access_token_id, ended_at AS deleted_at FROM ended_webhooks WHERE id = ?',
    [id],
  )
  return ended !== undefined && !mayRenew(token, ended)
}

/** Whether a deleted webhook has this id, which the token may create again. */
export const isRenewable = async (sql: Sql, token: AccessToken, id: string): Promise<boolean> => {
  const [present] = await rows<Owned>(sql, 'SELECT access_token_id, deleted_at FROM webhooks WHERE id = ?', [id])
  return present !== undefined && mayRenew(token, present)
}

const mayRenew = (token: AccessToken, { access_token_id, deleted_at }: Owned): boolean =>
  deleted_at !== null && (access_token_id === token.id || (token.seesAllOrganisations && may(token, 'admin')))

/** Keeps the ids of webhooks whose rows are about to go. */
export const keepEnded = async (trx: Sql, ids: readonly string[]): Promise<void> => {
  await trx('ended_webhooks').whereIn('id', ids).delete()
  const ended = await rows<{ id: string; access_token_id: string; ended_at: number }>(
    trx,
    `SELECT id, access_token_id, deleted_at AS ended_at FROM webhooks WHERE id IN (${marks(ids)})`,
    [...ids],
  )
  await insertMany(trx, 'ended_webhooks', ended)
}
