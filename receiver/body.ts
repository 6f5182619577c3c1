import { toBytes } from '../shared/bytes.ts'
import { Fault } from './fault.ts'

/** The longest body that is read, far longer than any delivery; a longer one is answered 413. */
export const MAX_BODY_BYTES = 1024 * 1024
/**
 * How much of a body that is too long is read and dropped: an answer sent before the body's end may be lost with the
 * connection.
 */
const MAX_DISCARDED_BYTES = 8 * 1024 * 1024

export type Bytes = Uint8Array<ArrayBuffer>

/** The fault of a body that is too long. The rest of the body stays unread, so the connection must be closed. */
export const tooLarge = (): Fault =>
  new Fault('body_too_large', 'The body is longer than 1 MiB.', { headers: { connection: 'close' } })

const alreadyRead = (): Fault =>
  new Fault(
    'body_already_read',
    'A body parser has read the body before the receiver could. Put the receiver before the parser, ' +
      'or let the parser keep the body’s bytes as rawBody.',
  )

const incomplete = (cause?: unknown): Fault =>
  new Fault('body_incomplete', 'The connection was closed before the body’s end.', { cause })

// biome-ignore lint/suspicious/noExplicitAny: node:events has no better type for what all listeners have in common
type Listener = (...values: any[]) => void

/** A request of node:http, which every framework on it exposes. */
export interface NodeRequest {
  method?: string | undefined
  headers: { authorization?: string | undefined }
  readableDidRead?: boolean
  destroyed?: boolean
  on(event: string, listener: Listener): unknown
  off(event: string, listener: Listener): unknown
  pause(): unknown
}

/** Where frameworks keep a body that they have read. */
export interface KeptBody {
  rawBody?: unknown
  body?: unknown
}

/** The body's bytes, from the stream or from where a framework kept them. Throws a Fault if they are unavailable. */
export const readNodeBody = async (request: NodeRequest, kept: KeptBody): Promise<Bytes> => {
  const raw = [kept.rawBody, kept.body].find(isRaw)
  if (raw !== undefined) return bytesOf(raw)
  if (request.readableDidRead) throw alreadyRead()
  if (request.destroyed) throw incomplete()
  return readNodeStream(request)
}

/** Reads by events, because leaving an async iteration early would close the connection before the answer. */
const readNodeStream = (request: NodeRequest): Promise<Bytes> =>
  new Promise((resolve, reject) => {
    const collected = new Collected()
    const settle = (how: () => void) => {
      for (const [event, listener] of Object.entries(listeners)) if (event !== 'error') request.off(event, listener)
      how()
    }
    const listeners: Record<string, Listener> = {
      data: (chunk: Uint8Array) => {
        if (collected.add(chunk)) return
        request.pause()
        settle(() => reject(tooLarge()))
      },
      end: () =>
        settle(() => {
          if (collected.isTooLarge) reject(tooLarge())
          else resolve(collected.bytes)
        }),
      // This listener stays for errors after the end: an 'error' event without a listener ends the process.
      error: (cause: unknown) => settle(() => reject(incomplete(cause))),
      close: () => settle(() => reject(incomplete())),
    }
    for (const [event, listener] of Object.entries(listeners)) request.on(event, listener)
  })

/** The body's bytes. Throws a Fault if they are unavailable. */
export const readFetchBody = async (request: Request): Promise<Bytes> => {
  if (request.bodyUsed) throw alreadyRead()
  const reader = request.body?.getReader()
  if (reader === undefined) return new Uint8Array()
  const collected = new Collected()
  try {
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      if (collected.add(part.value as Uint8Array)) continue
      reader.cancel().catch(() => {})
      break
    }
  } catch (error) {
    throw incomplete(error)
  }
  if (collected.isTooLarge) throw tooLarge()
  return collected.bytes
}

/** Collects the parts of a body, and keeps them while they are within the limit. */
class Collected {
  #parts: Uint8Array[] = []
  #length = 0

  /** Adds a part. False if the body is so long that reading on is pointless. */
  add(part: Uint8Array): boolean {
    this.#length += part.length
    if (this.isTooLarge) this.#parts = []
    else this.#parts.push(part)
    return this.#length <= MAX_DISCARDED_BYTES
  }

  get isTooLarge(): boolean {
    return this.#length > MAX_BODY_BYTES
  }

  get bytes(): Bytes {
    const bytes = new Uint8Array(this.#length)
    let at = 0
    for (const part of this.#parts) {
      bytes.set(part, at)
      at += part.length
    }
    return bytes
  }
}

export const isRaw = (value: unknown): value is Uint8Array | string =>
  typeof value === 'string' || value instanceof Uint8Array

export const bytesOf = (raw: Uint8Array | string): Bytes => (typeof raw === 'string' ? toBytes(raw) : (raw as Bytes))
