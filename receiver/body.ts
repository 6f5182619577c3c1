import { toBytes } from '../shared/bytes.ts'
import { Fault } from './fault.ts'

/** Far more than any delivery; what is longer is answered 413. */
export const MAX_BODY_BYTES = 1024 * 1024
/** Of what is too long so much is read and not kept, since an answer before its end may be lost with the connection. */
const MAX_DISCARDED_BYTES = 8 * 1024 * 1024

export type Bytes = Uint8Array<ArrayBuffer>

/** Nobody reads the rest: the connection can carry no other request. */
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

/** A request of node:http, as every framework on it has. */
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

/** The body's bytes, from wherever they are. Throws Faults. */
export const readNodeBody = async (request: NodeRequest, kept: KeptBody): Promise<Bytes> => {
  const raw = [kept.rawBody, kept.body].find(isRaw)
  if (raw !== undefined) return bytesOf(raw)
  if (request.readableDidRead) throw alreadyRead()
  if (request.destroyed) throw incomplete()
  return readNodeStream(request)
}

/** By its events: to leave an iteration before its end would close the connection before it is answered. */
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
      // Stays, for errors that come after the end: one that nobody listens for ends the process.
      error: (cause: unknown) => settle(() => reject(incomplete(cause))),
      close: () => settle(() => reject(incomplete())),
    }
    for (const [event, listener] of Object.entries(listeners)) request.on(event, listener)
  })

/** The body's bytes. Throws Faults. */
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

/** The parts of a body, kept as long as they are within the limit. */
class Collected {
  #parts: Uint8Array[] = []
  #length = 0

  /** False when enough has come to know that no end is near. */
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
