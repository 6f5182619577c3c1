import type { GraphqlRequest, Outcomes } from '../graphql/request.ts'

// What the server's process and those that answer its queries tell each other.

export type ToReader =
  | { kind: 'start'; databaseUrl: string; engine: string; logLevel: string; places: number }
  /**
   * `now`: the time of the request, epoch milliseconds. The database is waited for `patienceMs` at most. `made`: of a
   * mutation that is made, what its fields have come to.
   */
  | { kind: 'ask'; id: number; request: GraphqlRequest; now: number; patienceMs: number; made: Outcomes | undefined }
  /** The client of a request has hung up. */
  | { kind: 'gone'; id: number }

export type FromReader =
  | { kind: 'ready' }
  /** What the database's server calls a connection, to end it with its statement by; and the one that it replaces. */
  | { kind: 'connection'; connectionId: number; before: number | undefined }
  /** A connection is to be ended. */
  | { kind: 'end'; connectionId: number }
  /** Bytes of the body, of which an answer is the last. */
  | { kind: 'part'; id: number; bytes: Uint8Array }
  | {
      kind: 'answer'
      id: number
      status: number
      headers: Record<string, string>
      codes: Set<unknown>
      /** What was asked for. */
      operation: string | undefined
    }
  /** The request is a mutation, its document valid. */
  | { kind: 'mutation'; id: number }
