import { TidingsError } from '../../shared/errors.ts'
import type { AccessToken } from '../domain/permissions.ts'
import type { Redelivering, Redelivery } from '../domain/redelivery.ts'

// The messages to and from a process that answers queries.

/** A request over HTTP, authenticated. */
export type GraphqlRequest = {
  url: string
  method: string
  headers: { accept?: string | undefined; 'content-type'?: string | undefined }
  body: string
  token: AccessToken
  requestId: string
  /** What is to be done for it instead of answering its document. */
  task?: Task
}

/** Reads for a request in several steps; the results are lines of JSON or of ids. */
export type Task =
  /** The results of a subscription for some deliveries, of those that its selector matches. */
  | { kind: 'changed'; ids: string[] }
  /** The ids of the deliveries that a subscription may have missed since the event with this id. */
  | { kind: 'missed'; since: string }
  /** A page of deliveries to send again. */
  | { kind: 'redelivery'; asked: Redelivering; soFar: Redelivery }

export type GraphqlAnswer = { status: number; headers: Record<string, string>; body: string | Buffer | null }

export const hungUp = (): TidingsError => new TidingsError('QUERY_TOO_COMPLEX', 'The client has hung up.')
