import { TidingsError } from '../../shared/errors.ts'
import type { AccessToken } from '../domain/permissions.ts'

// The messages to and from a process that answers queries.

/** A request over HTTP, authenticated. */
export type GraphqlRequest = {
  url: string
  method: string
  headers: { accept?: string | undefined; 'content-type'?: string | undefined }
  body: string
  token: AccessToken
  requestId: string
  /** For a subscription: what it asks at this moment. */
  follow?: Follow
}

/**
 * The results of some deliveries, of those that the selector matches; or the ids of those that may have changed since
 * the event with this id.
 */
export type Follow = { ids: string[] } | { since: string }

export type GraphqlAnswer = { status: number; headers: Record<string, string>; body: string | Buffer | null }

/** The results of a mutation's fields, by their names in the answer. */
export type Outcomes = Record<string, unknown>

export const hungUp = (): TidingsError => new TidingsError('QUERY_TOO_COMPLEX', 'The client has hung up.')
