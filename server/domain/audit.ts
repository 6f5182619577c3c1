import { hostname, userInfo } from 'node:os'
import type { OperatorCommand } from '../../shared/vocabulary.ts'
import { marks, rows, run, type Sql } from '../database/connect.ts'
import { newId } from '../ids.ts'

// The audit log: one row for each mutation, written in the transaction of the change. If the mutation is one
// transaction, the row is also the mark of its signature (`used-signatures.ts`), which is written anyway.

/** The author and the operation of an entry. */
export type Entry = {
  accessTokenId: string
  requestId: string
  /** The mutation's name. */
  operation: string
  /** As JSON, shortened. */
  arguments: string
}

export const entryOf = (accessTokenId: string, requestId: string, operation: string, args: object): Entry => ({
  accessTokenId,
  requestId: requestId.slice(0, LONGEST_REQUEST_ID),
  operation,
  arguments: JSON.stringify(shortened(withoutSecrets(args))),
})

/** A webhook's arguments without its secret and the values of its headers. */
const withoutSecrets = (args: object): object => ({
  ...args,
  ...('secret' in args && { secret: HIDDEN }),
  ...('headers' in args && {
    headers: Object.fromEntries(Object.keys(Object(args.headers)).map(name => [name, HIDDEN])),
  }),
})

const HIDDEN = '…'
const LONGEST_REQUEST_ID = 128
const LONGEST_TEXT = 500
const LONGEST_LIST = 50
const MOST_KEYS = 50
const DEEPEST = 6

/** The arguments, with long values shortened. */
const shortened = (value: unknown, depth = 0): unknown => {
  if (typeof value === 'string') return value.length <= LONGEST_TEXT ? value : `${value.slice(0, LONGEST_TEXT)}…`
  if (value === null || typeof value !== 'object') return value
  if (depth === DEEPEST) return '…'
  if (Array.isArray(value)) {
    const kept = value.slice(0, LONGEST_LIST).map(each => shortened(each, depth + 1))
    return value.length <= LONGEST_LIST ? kept : [...kept, `… and ${value.length - LONGEST_LIST} more`]
  }
  const entries = Object.entries(value).slice(0, MOST_KEYS)
  return Object.fromEntries(entries.map(([name, each]) => [name, shortened(each, depth + 1)]))
}

/** Writes the entry of a mutation. `subjectId` is the id of what it created, which the arguments may not contain. */
export const writeEntry = async (
  trx: Sql,
  { accessTokenId, requestId, operation, arguments: args }: Entry,
  subjectId: string | undefined,
  now: number,
): Promise<void> => {
  await run(
    trx,
    `INSERT INTO audit_log (id, created_at, access_token_id, operation, arguments, subject_id, request_id)
     VALUES (?, ?, ?, ?, ?, ?, ?)`,
    [newId(now), now, accessTokenId, operation, args, subjectId ?? null, requestId],
  )
}

/** As `writeEntry`, into the row that marks the request's signature. */
export const completeEntry = async (
  trx: Sql,
  markId: string,
  { accessTokenId, requestId, operation, arguments: args }: Entry,
  subjectId: string | undefined,
): Promise<void> => {
  await run(
    trx,
    `UPDATE audit_log SET access_token_id = ?, operation = ?, arguments = ?, subject_id = ?, request_id = ?
     WHERE id = ?`,
    [accessTokenId, operation, args, subjectId ?? null, requestId, markId],
  )
}

export const nameSubject = async (trx: Sql, id: string, subjectId: string): Promise<void> => {
  await run(trx, 'UPDATE audit_log SET subject_id = ? WHERE id = ?', [subjectId, id])
}

/** Writes what an operator has done directly on the database. */
export const auditOperator = async (
  sql: Sql,
  {
    operation,
    args = {},
    subjectId,
    now,
  }: { operation: OperatorCommand; args?: object; subjectId?: string; now: number },
): Promise<void> => {
  const actor = `${userName()} on ${hostname()}`
  await run(
    sql,
    `INSERT INTO audit_log (id, created_at, actor, operation, arguments, subject_id) VALUES (?, ?, ?, ?, ?, ?)`,
    [newId(now), now, actor.slice(0, 255), operation, JSON.stringify(shortened(args)), subjectId ?? null],
  )
}

/** A container's user may have no name. */
const userName = (): string => {
  try {
    return userInfo().username
  } catch {
    return `user ${process.getuid?.() ?? ''}`
  }
}

/** Deletes up to `limit` entries from before a time, the oldest first, and returns how many there were. */
export const deleteEntriesBefore = async (sql: Sql, before: number, limit: number): Promise<number> => {
  const old = await rows<{ id: string }>(
    sql,
    'SELECT id FROM audit_log WHERE created_at < ? ORDER BY created_at LIMIT ?',
    [before, limit],
  )
  const ids = old.map(({ id }) => id)
  return ids.length === 0 ? 0 : run(sql, `DELETE FROM audit_log WHERE id IN (${marks(ids)})`, ids)
}
