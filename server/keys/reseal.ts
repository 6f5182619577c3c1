import { type Database, rows, run } from '../database/connect.ts'
import { tokenSealContext } from '../domain/access-tokens.ts'
import { auditOperator } from '../domain/audit.ts'
import { answerSealContext, outcomesSealContext } from '../domain/idempotency.ts'
import { carriedSealContext } from '../domain/webhook-requests.ts'
import { otherWork } from '../event-loop.ts'
import { KeyOrderError, liveProcesses, named, namesOf, requireMasterKeys } from './master-keys.ts'
import { createSealer } from './seal.ts'
import { sealContext } from './signing-keys.ts'

/** Everything that is sealed: the key of its row, and its sealing context. */
const SEALED: { table: string; column: string; key: string[]; context: (...key: string[]) => string }[] = [
  { table: 'access_tokens', column: 'secret_sealed', key: ['id'], context: tokenSealContext },
  { table: 'signing_keys', column: 'private_key_sealed', key: ['kid'], context: sealContext },
  { table: 'webhooks', column: 'request_sealed', key: ['id'], context: carriedSealContext },
  {
    table: 'idempotency_keys',
    column: 'outcomes_sealed',
    key: ['access_token_id', 'key_hash'],
    context: outcomesSealContext,
  },
  {
    table: 'idempotency_keys',
    column: 'answer_sealed',
    key: ['access_token_id', 'key_hash'],
    context: answerSealContext,
  },
]

/** A stored answer may have 4 MiB. */
const BATCH = 20

/**
 * Seals everything again with the first master key while servers run, and records that nothing is sealed with the
 * others any more. Each row is changed only if it is still as it was read. It can be killed and run again. Throws
 * KeyOrderError unless every process already seals with that key.
 *
 * @returns the number of secrets that were sealed again
 */
export const reseal = async (database: Database, masterKeys: Buffer[]): Promise<{ resealed: number; key: string }> => {
  const names = namesOf(masterKeys)
  const [key] = names as [string]
  const sealer = createSealer(masterKeys)
  await database.transaction(async trx => {
    await requireMasterKeys(trx, names)
    const others = (await liveProcesses(trx)).filter(process => process.masterKeys[0] !== key)
    if (others.length === 0) return
    throw new KeyOrderError(
      `${others.map(named).join(' and ')} would still seal with a master key other than ${key}`,
      'First set TIDINGS_MASTER_KEY=new,old for every process.',
      { mayPass: true },
    )
  })
  let resealed = 0
  for (const { table, column, key: columns, context } of SEALED) {
    const where = columns.map(name => `${name} = ?`).join(' AND ')
    for (;;) {
      const found = await rows<Record<string, string>>(
        database.knex,
        `SELECT ${columns}, ${column} FROM ${table} WHERE ${isOther(column)} LIMIT ?`,
        [key, BATCH],
      )
      for (const row of found) {
        const id = columns.map(name => row[name]!)
        const sealed = row[column]!
        const again = sealer.seal(sealer.open(sealed, context(...id)), context(...id))
        resealed += await run(database.knex, `UPDATE ${table} SET ${column} = ? WHERE ${where} AND ${column} = ?`, [
          again,
          ...id,
          sealed,
        ])
      }
      if (found.length === 0) break
      await otherWork()
    }
  }
  await database.transaction(async trx => {
    // A process that was admitted meanwhile is seen here.
    await requireMasterKeys(trx, names)
    for (const { table, column } of SEALED) {
      const [left] = await rows(trx, `SELECT 1 FROM ${table} WHERE ${isOther(column)} LIMIT 1`, [key])
      if (!left) continue
      throw new KeyOrderError('a secret was sealed with an earlier key in the meantime', 'Run it again.', {
        mayPass: true,
      })
    }
    const processes = await liveProcesses(trx)
    if (processes.some(process => process.masterKeys[0] !== key)) {
      throw new KeyOrderError('a process that seals with an earlier key has started in the meantime', 'Run it again.', {
        mayPass: true,
      })
    }
    await run(
      trx,
      `UPDATE master_keys SET retired_at = ${database.dialect.nowMs} WHERE name <> ? AND retired_at IS NULL`,
      [key],
    )
  })
  const [{ now } = { now: Date.now() }] = await rows<{ now: number }>(
    database.knex,
    `SELECT ${database.dialect.nowMs} AS now`,
  )
  await auditOperator(database.knex, { operation: 'server keys reseal', args: { resealed }, now: Number(now) })
  return { resealed, key }
}

/** Sealed text is `v1.`, the name of the key, and the rest. A revoked signing key has none. */
const isOther = (column: string): string => `${column} <> '' AND SUBSTR(${column}, 4, 8) <> ?`
