import { Fault } from './fault.ts'

/** Far more than any delivery; what is longer is answered 413. */
export const MAX_BODY_BYTES = 1024 * 1024

export const tooLarge = (): Fault => new Fault('body_too_large', 'The body is longer than 1 MiB.')

const alreadyRead = (): Fault =>
  new Fault(
    'body_already_read',
    'A body parser has read the body before the receiver could. Put the receiver before the parser, ' +
      'or let the parser keep the body’s bytes as rawBody.',
  )

/** A request of node:http, as every framework on it has. */
export interface NodeRequest extends AsyncIterable<unknown> {
  method?: string | undefined
  headers: { authorization?: string | undefined }
  readableDidRead?: boolean
}

/** Where frameworks keep a body that they have read. */
export interface KeptBody {
  rawBody?: unknown
  body?: unknown
}

/** The body's bytes, read from the request unless something before has read and kept them. Throws Faults. */
export const readNodeBody = async (request: NodeRequest, kept: KeptBody): Promise<Uint8Array | string> => {
  const raw = [kept.rawBody, kept.body].find(isRaw)
  if (raw !== undefined) return raw
  if (request.readableDidRead) throw alreadyRead()
  return readAll(request as AsyncIterable<Uint8Array>)
}

/** The body's bytes. Throws Faults. */
export const readFetchBody = async (request: Request): Promise<Uint8Array> => {
  if (request.bodyUsed) throw alreadyRead()
  return readAll(request.body ?? [])
}

/** What is too long is read to its end, and not kept: an answer before that would be lost with the connection. */
const readAll = async (chunks: AsyncIterable<Uint8Array> | Iterable<Uint8Array>): Promise<Uint8Array> => {
  const read: Uint8Array[] = []
  let length = 0
  try {
    for await (const chunk of chunks) {
      length += chunk.length
      if (length <= MAX_BODY_BYTES) read.push(chunk)
    }
  } catch (error) {
    throw new Fault('body_incomplete', 'The connection was closed before the body’s end.', {}, error)
  }
  if (length > MAX_BODY_BYTES) throw tooLarge()
  return Buffer.concat(read)
}

const isRaw = (value: unknown): value is Uint8Array | string => typeof value === 'string' || value instanceof Uint8Array
