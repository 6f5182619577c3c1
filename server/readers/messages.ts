import type { GraphqlRequest } from '../graphql/request.ts'

// The messages between the server's process and its readers. Long bodies have a pipe of their own: a message is copied
// several times on its way, and blocks its receiver until all of it is read.

/** The file descriptor of the pipe in a reader. */
export const BODIES_FD = 4

export type ToReader =
  /** `timeMs` is the longest time of a request. */
  | { kind: 'start'; databaseUrl: string; engine: string; logLevel: string; places: number; timeMs: number }
  /** `now`: the time of the request, epoch milliseconds. `patienceMs` is the longest wait for the database. */
  | { kind: 'ask'; id: number; request: GraphqlRequest; now: number; patienceMs: number }
  /** The request, which has patterns that may take long, may match rows. */
  | { kind: 'match'; id: number }
  /** The answer of a request is not wanted any more, or not now. */
  | { kind: 'gone'; id: number }

export type FromReader =
  /** `release`: of its files, as in `server/release.ts`. */
  | { kind: 'ready'; release: string }
  /** The server's id of a connection, by which it can be closed with its statement, and the id that it replaces. */
  | { kind: 'connection'; connectionId: number; before: number | undefined }
  /** Asks for a connection to be closed. */
  | { kind: 'end'; connectionId: number }
  | {
      kind: 'answer'
      id: number
      /** The body, or the number of its bytes, which come on the pipe, one answer after the other. */
      body: Uint8Array | number
      status: number
      headers: Record<string, string>
      codes: Set<unknown>
      /** The operation's name. */
      operation: string | undefined
      /**
       * About how long the database and the reader worked for it, whatever else they did meanwhile. Undefined if it was
       * ended since its answer was not wanted.
       */
      costMs: number | undefined
    }
  /** The request has patterns that may take long, and waits for `match`. */
  | { kind: 'heavy'; id: number }
  /** The request has spent more than a small one does. */
  | { kind: 'large'; id: number }
  /** The request is a mutation with a valid document. */
  | { kind: 'mutation'; id: number }
