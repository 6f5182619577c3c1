import { setTimeout as sleep } from 'node:timers/promises'
import type { Clock } from '../../clock.ts'
import { type Database, marks, rows, run, type Sql } from '../../database/connect.ts'
import type { Change } from '../../domain/change.ts'
import type { Message } from '../attempt.ts'
import { type Evidence, keptHeaders } from '../evidence.ts'
import type { AttemptResult } from '../outcome.ts'
import type { Answer } from './answer.ts'

// The ping that lets a pulled webhook in. Its webhook is not stored yet, so it is no row of the queue: it stands in a
// table of its own, until a client that waits for the webhook, at any process, has taken and answered it.

/** How long a client has to take the ping and answer it, like an endpoint. */
export const PING_MS = 15_000
/** How soon the answer is seen that another process has accepted. */
const LOOK_MS = 500
/** A look that is later than this is one of a process that stood still. */
const STALL_MS = 2_000

type PingRow = { delivery_id: string; message: string; taken_at: number | null; answer: string | null }
type Answered = { result: AttemptResult; evidence: Evidence; answeredAt: number }

export type PulledPing = { startedAt: number; durationMs: number; result: AttemptResult; evidence?: Evidence }

type Given = {
  database: Database
  clock: Clock
  look: (webhookId: string) => void
}

/** @param given.look called with a webhook whose ping a client may take now */
export class PullPings {
  readonly #database: Given['database']
  readonly #clock: Given['clock']
  readonly #look: Given['look']
  readonly #answers = new Map<string, () => void>()

  constructor({ database, clock, look }: Given) {
    this.#database = database
    this.#clock = clock
    this.#look = look
  }

  /** Has a client of an access token, or of one that sees the webhook, answer a ping. */
  async ping(message: Message, accessTokenId: string, forMs = PING_MS): Promise<PulledPing> {
    const { deliveryId, webhookId } = message
    const createdAt = this.#clock.now()
    await run(
      this.#database.knex,
      'INSERT INTO pull_pings (delivery_id, webhook_id, access_token_id, message, created_at) VALUES (?, ?, ?, ?, ?)',
      [deliveryId, webhookId, accessTokenId, JSON.stringify(message), createdAt],
    )
    this.#look(webhookId)
    try {
      const row = await this.#waitForAnswer(deliveryId, forMs)
      const startedAt = row?.taken_at ?? createdAt
      if (!row || row.answer === null) {
        const isTaken = row !== undefined && row.taken_at !== null
        const detail = isTaken ? 'The client that took the ping gave no answer' : 'Nobody pulled'
        return {
          startedAt,
          durationMs: this.#clock.now() - startedAt,
          result: { kind: 'failure', reason: 'timeout', detail },
        }
      }
      const { result, evidence, answeredAt }: Answered = JSON.parse(row.answer)
      return { startedAt, durationMs: Math.max(0, answeredAt - startedAt), result, evidence }
    } finally {
      this.#answers.delete(deliveryId)
      await run(this.#database.knex, 'DELETE FROM pull_pings WHERE delivery_id = ?', [deliveryId]).catch(() => {})
    }
  }

  /** Reports an answer that this process has accepted. */
  answered(deliveryId: string): void {
    this.#answers.get(deliveryId)?.()
  }

  async #waitForAnswer(deliveryId: string, forMs: number): Promise<PingRow | undefined> {
    for (let until = performance.now() + forMs; ; ) {
      const heard = new AbortController()
      this.#answers.set(deliveryId, () => heard.abort())
      const [row] = await rows<PingRow>(
        this.#database.knex,
        'SELECT delivery_id, message, taken_at, answer FROM pull_pings WHERE delivery_id = ?',
        [deliveryId],
      )
      const leftMs = until - performance.now()
      if (!row || row.answer !== null || leftMs <= 0) return row
      const askedAt = performance.now()
      await sleep(Math.min(LOOK_MS, leftMs), undefined, { signal: heard.signal }).catch(() => {})
      // A process that stood still reads the answer that has arrived meanwhile before the time is up.
      until += Math.max(0, performance.now() - askedAt - STALL_MS)
    }
  }
}

/** Takes a ping; undefined if another client was first. */
export const takePing = async (
  { trx, token, now }: Change,
  deliveryId: string,
): Promise<{ message: Message; until: number } | undefined> => {
  const [row] = await rows<PingRow & { created_at: number }>(
    trx,
    'SELECT message, created_at FROM pull_pings WHERE delivery_id = ?',
    [deliveryId],
  )
  if (!row) return undefined
  const taken = await run(
    trx,
    'UPDATE pull_pings SET taken_at = ?, taken_by = ? WHERE delivery_id = ? AND taken_at IS NULL',
    [now(), token.id, deliveryId],
  )
  return taken === 0 ? undefined : { message: JSON.parse(row.message), until: row.created_at + PING_MS }
}

/** Keeps the answers to pings that this token has taken, and returns the pings' ids. */
export const answerPings = async (
  { trx, token, now }: Change,
  answers: { answer: Answer; result: AttemptResult; headers: Record<string, string> }[],
  address: string | undefined,
): Promise<Set<string>> => {
  const found = await pingsAmong(
    trx,
    answers.map(({ answer }) => answer.deliveryId),
    token.id,
  )
  for (const { answer, result, headers } of answers) {
    if (!found.has(answer.deliveryId)) continue
    const evidence: Evidence = {
      ...(address !== undefined && { remoteAddress: address }),
      pulledBy: { id: token.id, name: token.name },
      responseHeaders: keptHeaders(headers),
    }
    const answered: Answered = { result, evidence, answeredAt: now() }
    await run(trx, 'UPDATE pull_pings SET answered_at = ?, answer = ? WHERE delivery_id = ? AND answered_at IS NULL', [
      answered.answeredAt,
      JSON.stringify(answered),
      answer.deliveryId,
    ])
  }
  return found
}

const pingsAmong = async (sql: Sql, ids: string[], tokenId: string): Promise<Set<string>> => {
  if (ids.length === 0) return new Set()
  const found = await rows<{ delivery_id: string }>(
    sql,
    `SELECT delivery_id FROM pull_pings WHERE delivery_id IN (${marks(ids)}) AND taken_by = ?`,
    [...ids, tokenId],
  )
  return new Set(found.map(row => row.delivery_id))
}
