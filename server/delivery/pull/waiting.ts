import type { AccessToken } from '../../domain/permissions.ts'
import type { Job } from '../queue.ts'

/**
 * Why a wait ended: it has been handed deliveries, something may be due, a ping waits for this client, the webhook that
 * it waits for has become active, its time is over, or the server stops.
 */
export type Woken =
  | { why: 'due' | 'active' | 'time' | 'stopping' }
  | { why: 'ping'; deliveryId: string }
  | { why: 'handed'; handed: Taken }

/** Deliveries under one lease-end that a client has, or that are to be given back. */
export type Taken = { webhookId: string; jobs: Job[]; leaseEnd: number }

export type Wait = {
  webhookId: string
  token: AccessToken
  /** The address of the client. */
  address: string | undefined
  /** Whether deliveries can be taken. If not, it waits for the ping that lets the webhook in. */
  isActive: boolean
  /** Whether the token sees the webhook. If not, the webhook may be about to be created, by this token. */
  isSeen: boolean
  /** By `performance.now()`. */
  until: number
  /** Whether to skip the look at the beginning: its take found nothing, and nothing was committed meanwhile. */
  isLate: boolean
  gone: AbortSignal
  /** How many deliveries it takes at once. */
  limit: number
  /** Called when it has to wait: marks its signature, before it may be handed anything; undefined if it is marked. */
  mark(): Promise<void> | undefined
}

/** A client that waits. */
export type Waiting = Wait & {
  /** Whether a look has found nothing for it. */
  isLooked: boolean
  /** Whether its signature is marked: it can be handed deliveries without a transaction. */
  isMarked: boolean
  /** Deliveries that are its own if their transactions commit. */
  owed: number
  /** Those that it leaves with. */
  jobs: Job[]
  /** The end of the first of their leases. */
  leaseEnd: number
  resolve: (woken: Woken) => void
  reject: (error: Error) => void
}
