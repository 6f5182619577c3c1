import { once } from 'node:events'
import { type AddressInfo, connect, createServer, type Socket } from 'node:net'

// A proxy between a server process and its database (MySQL or MariaDB) that a case can break, slow down, or stop at a
// statement.

/** A statement that was stopped on its way. */
export type Held = {
  text: string
  /** Releases it, with everything behind it on its connection. */
  release(): void
}

export type Hold = {
  /** Resolves when a statement has arrived and is held; never if none comes. */
  caught: Promise<Held>
  /** How many stand still, or are on their way to it. */
  count(): number
  /** Stops no more statements, and releases those that stand still. */
  end(): void
}

/** An error of the database. `instead`: a statement that the database is given in place of the one that fails. */
export type Failure = { errno: number; sqlState: string; message: string; instead?: string }

/** Selects statements, of which a packet may have several, by a pattern or a function. */
export type Pattern = RegExp | ((text: string) => boolean)

export type DatabaseProxy = {
  /** The database's address through this proxy. */
  url: string
  /**
   * Connections stay and new ones are accepted, but nothing passes, not even the end of a connection: a vanished host.
   */
  hole(): void
  /** Breaks every connection; new ones are taken. */
  cut(): void
  /** Breaks every connection, and refuses new ones. */
  refuse(): void
  /** Ends `hole` and `refuse`; waiting data passes. */
  mend(): void
  /** Milliseconds that each byte takes longer from now on, each way. */
  delay(ms: number): void
  /**
   * Stops the next `times` packets with a statement that matches, before the database has them; or, with `answer`, when
   * the database has answered and the server process has not had the answer.
   */
  hold(pattern: Pattern, options?: { times?: number; answer?: boolean }): Hold
  /** Answers packets with a statement that matches with an error, and does not pass them on, until it is ended. */
  fail(pattern: Pattern, failure: Failure | (() => Failure)): { failed: () => number; end: () => void }
  /** Calls back with each statement as it comes, and whether its packet begins with it. Returns how to end that. */
  watch(onStatement: Watcher): () => void
  close(): void
}

const COM_QUERY = 0x03
const COM_STMT_PREPARE = 0x16
const COM_STMT_EXECUTE = 0x17
const HEADER_BYTES = 4

type Watcher = (text: string, isFirst: boolean) => void
type Gate = { isOpen: boolean; onReached?: (() => void) | undefined }

/** One direction of a connection: chunks in order, each after its delay, none past a closed gate. */
class Lane {
  readonly #write: (chunk: Buffer) => void
  readonly #items: (Gate | { chunk: Buffer; at: number })[] = []
  #timer: NodeJS.Timeout | undefined
  #isStopped: boolean

  constructor(write: (chunk: Buffer) => void, isStopped: boolean) {
    this.#write = write
    this.#isStopped = isStopped
  }

  push(chunk: Buffer, delayMs: number): void {
    this.#items.push({ chunk, at: performance.now() + delayMs })
    this.flush()
  }

  /** Closes a gate behind what has been pushed. `onReached` is called when something stands at it. */
  close(onReached?: () => void): Gate {
    const gate: Gate = { isOpen: false, onReached }
    this.#items.push(gate)
    return gate
  }

  set isStopped(isStopped: boolean) {
    this.#isStopped = isStopped
    this.flush()
  }

  flush(): void {
    clearTimeout(this.#timer)
    while (!this.#isStopped && this.#items.length > 0) {
      const first = this.#items[0]!
      if ('chunk' in first) {
        const waitMs = first.at - performance.now()
        if (waitMs > 0) {
          this.#timer = setTimeout(() => this.flush(), Math.ceil(waitMs))
          return
        }
        this.#write(first.chunk)
      } else if (!first.isOpen) {
        if (this.#items.length > 1) first.onReached?.()
        return
      }
      this.#items.shift()
    }
  }
}

/** One connection. */
type Link = {
  client: Socket
  upstream: Socket | undefined
  toServer: Lane
  toClient: Lane
}

type Holding = { pattern: Pattern; left: number; isOfAnswer: boolean; caught: (held: Held) => void; held: Set<Held> }
type Failing = { pattern: Pattern; failure: () => Failure; count: number }

/** The statements of a packet. No value contains a line break that is not escaped. */
const statementsIn = (text: string): string[] => text.split(';\n')

/** Whether any statement of a packet matches. */
const matches = (pattern: Pattern, text: string): boolean =>
  statementsIn(text).some(one => (pattern instanceof RegExp ? pattern.test(one) : pattern(one)))

export const startProxy = async (databaseUrl: string): Promise<DatabaseProxy> => {
  const { hostname, port } = new URL(databaseUrl)
  const links = new Set<Link>()
  const holds = new Set<Holding>()
  const failures = new Set<Failing>()
  const watchers = new Set<Watcher>()
  let isHoled = false
  let isRefusing = false
  let delayMs = 0

  const hold = (link: Link, text: string): void => {
    for (const holding of holds) {
      if (holding.left === 0 || !matches(holding.pattern, text)) continue
      holding.left -= 1
      const lane = holding.isOfAnswer ? link.toClient : link.toServer
      const held: Held = {
        text,
        release: () => {
          holding.held.delete(held)
          gate.isOpen = true
          lane.flush()
        },
      }
      const gate = lane.close(() => holding.caught(held))
      holding.held.add(held)
    }
  }

  /** Passes on what a client sends, packet by packet. */
  const fromClient = (link: Link): ((chunk: Buffer) => void) => {
    const statements = new Map<number, string>()
    let preparing: string | undefined
    let answerInstead: Buffer | undefined
    let rest: Buffer = Buffer.alloc(0)
    let answered: Buffer = Buffer.alloc(0)

    const textOf = (packet: Buffer): string | undefined => {
      if (packet[3] !== 0) return undefined
      const command = packet[HEADER_BYTES]
      if (command === COM_STMT_EXECUTE) return statements.get(packet.readUInt32LE(HEADER_BYTES + 1))
      if (command !== COM_QUERY && command !== COM_STMT_PREPARE) return undefined
      const text = packet.toString('utf8', HEADER_BYTES + 1 + attributesOf(packet).length)
      if (command === COM_QUERY) return text
      preparing = text
      return undefined
    }

    const pass = (packet: Buffer): void => {
      const text = textOf(packet)
      if (text === undefined) {
        link.toServer.push(packet, delayMs)
        return
      }
      for (const [n, one] of statementsIn(text).entries()) for (const watcher of watchers) watcher(one, n === 0)
      const failing = [...failures].find(it => matches(it.pattern, text))
      if (failing) {
        failing.count += 1
        const failure = failing.failure()
        const error = errorPacket(failure)
        const { instead } = failure
        if (instead === undefined) link.toClient.push(error, delayMs)
        else {
          answerInstead = error
          link.toServer.push(queryPacket(instead, attributesOf(packet)), delayMs)
        }
        return
      }
      hold(link, text)
      link.toServer.push(packet, delayMs)
    }

    link.upstream?.on('data', chunk => {
      if (preparing === undefined && answerInstead === undefined) {
        link.toClient.push(chunk, delayMs)
        return
      }
      answered = Buffer.concat([answered, chunk])
      const length = lengthOf(answered)
      if (length === undefined || answered.length < length) return
      if (preparing !== undefined && answered[HEADER_BYTES] === 0) {
        statements.set(answered.readUInt32LE(HEADER_BYTES + 1), preparing)
      }
      link.toClient.push(answerInstead ?? answered, delayMs)
      preparing = undefined
      answerInstead = undefined
      answered = Buffer.alloc(0)
    })

    return chunk => {
      rest = rest.length === 0 ? chunk : Buffer.concat([rest, chunk])
      for (let length = lengthOf(rest); length !== undefined && rest.length >= length; length = lengthOf(rest)) {
        pass(rest.subarray(0, length))
        rest = rest.subarray(length)
      }
    }
  }

  const server = createServer(client => {
    client.on('error', () => {})
    if (isRefusing) return void client.resetAndDestroy()
    // A vanished host accepts no connection; connecting to this proxy only seems to succeed.
    const upstream = isHoled ? undefined : connect(Number(port), hostname)
    client.setNoDelay()
    upstream?.setNoDelay()
    const link: Link = {
      client,
      upstream,
      toServer: new Lane(chunk => void (upstream?.writable && upstream.write(chunk)), isHoled),
      toClient: new Lane(chunk => void (client.writable && client.write(chunk)), isHoled),
    }
    links.add(link)
    client.on('data', fromClient(link))
    client.on('close', () => {
      if (!isHoled) end(link)
    })
    upstream?.on('error', () => {})
    upstream?.on('close', () => {
      if (!isHoled) end(link)
    })
  })

  const end = (link: Link): void => {
    links.delete(link)
    link.client.destroy()
    link.upstream?.destroy()
  }

  const cut = (): void => {
    for (const link of [...links]) {
      link.client.resetAndDestroy()
      end(link)
    }
  }

  const stopAll = (isStopped: boolean): void => {
    isHoled = isStopped
    for (const { toServer, toClient } of links) {
      toServer.isStopped = isStopped
      toClient.isStopped = isStopped
    }
  }

  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  const url = new URL(databaseUrl)
  url.host = `127.0.0.1:${(server.address() as AddressInfo).port}`
  return {
    url: url.href,
    hole: () => stopAll(true),
    cut,
    refuse() {
      isRefusing = true
      cut()
    },
    mend() {
      isRefusing = false
      // Data of a client that is gone never arrives.
      for (const link of [...links]) {
        if (!link.upstream || link.client.destroyed || link.upstream.destroyed) end(link)
      }
      stopAll(false)
    },
    delay(ms) {
      delayMs = ms
    },
    hold(pattern, { times = 1, answer = false } = {}) {
      const { promise, resolve } = Promise.withResolvers<Held>()
      const holding: Holding = { pattern, left: times, isOfAnswer: answer, caught: resolve, held: new Set() }
      holds.add(holding)
      return {
        caught: promise,
        count: () => holding.held.size,
        end() {
          holds.delete(holding)
          for (const held of [...holding.held]) held.release()
        },
      }
    },
    fail(pattern, failure) {
      const failing: Failing = { pattern, failure: typeof failure === 'function' ? failure : () => failure, count: 0 }
      failures.add(failing)
      return { failed: () => failing.count, end: () => void failures.delete(failing) }
    },
    watch(onStatement) {
      watchers.add(onStatement)
      return () => void watchers.delete(onStatement)
    },
    close() {
      server.close()
      isHoled = false
      for (const link of [...links]) end(link)
    },
  }
}

/** The length of the packet that bytes begin with, its header included. */
const lengthOf = (bytes: Buffer): number | undefined =>
  bytes.length < HEADER_BYTES ? undefined : HEADER_BYTES + bytes.readUIntLE(0, 3)

const packetOf = (sequence: number, payload: Buffer): Buffer => {
  const header = Buffer.alloc(HEADER_BYTES)
  header.writeUIntLE(payload.length, 0, 3)
  header[3] = sequence
  return Buffer.concat([header, payload])
}

const errorPacket = ({ errno, sqlState, message }: Failure): Buffer =>
  packetOf(1, Buffer.concat([Buffer.from([0xff, errno & 0xff, errno >> 8]), Buffer.from(`#${sqlState}${message}`)]))

const queryPacket = (text: string, attributes: Buffer): Buffer =>
  packetOf(0, Buffer.concat([Buffer.from([COM_QUERY]), attributes, Buffer.from(text)]))

/** The counts that come before the text of a query where query attributes are spoken: none, in one set. */
const attributesOf = (packet: Buffer): Buffer => {
  const counts = packet.subarray(HEADER_BYTES + 1, HEADER_BYTES + 3)
  return counts[0] === 0 && counts[1] === 1 ? counts : Buffer.alloc(0)
}
