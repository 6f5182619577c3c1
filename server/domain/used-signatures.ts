import { createHash } from 'node:crypto'
import { isDuplicate, marks, rows, run, type Sql } from '../database/connect.ts'
import { patiently, unavailable } from '../database/patience.ts'

/** Marks a signature as having carried a mutation, until `expiresAt`; false if it had already, in whichever process. */
export const useSignature = async (sql: Sql, signature: string, expiresAt: number): Promise<boolean> => {
  try {
    await run(sql, 'INSERT INTO used_signatures (signature_hash, expires_at) VALUES (?, ?)', [
      createHash('sha256').update(signature).digest('base64'),
      expiresAt,
    ])
    return true
  } catch (error) {
    if (isDuplicate(error)) return false
    throw error
  }
}

/**
 * As `useSignature`, tried again while the database cannot be had, until `giveUpAt`. Where a try may have marked it
 * without being told so, nobody knows whose mark it is: then it throws UNAVAILABLE.
 */
export const useSignatureOnce = async (
  sql: Sql,
  { signature, expiresAt, giveUpAt }: { signature: string; expiresAt: number; giveUpAt: number },
): Promise<boolean> => {
  let tries = 0
  return patiently(async () => {
    tries += 1
    const isFirst = await useSignature(sql, signature, expiresAt)
    if (!isFirst && tries > 1) throw unavailable()
    return isFirst
  }, giveUpAt)
}

/** Deletes up to `limit` signatures that have expired, and returns how many there were. */
export const deleteExpiredSignatures = async (sql: Sql, now: number, limit: number): Promise<number> => {
  const expired = await rows<{ signature_hash: string }>(
    sql,
    'SELECT signature_hash FROM used_signatures WHERE expires_at < ? LIMIT ?',
    [now, limit],
  )
  if (expired.length === 0) return 0
  const hashes = expired.map(row => row.signature_hash)
  return run(sql, `DELETE FROM used_signatures WHERE signature_hash IN (${marks(hashes)})`, hashes)
}
