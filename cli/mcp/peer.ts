import { createInterface } from 'node:readline'

type Message = {
  id?: string | number | null
  method?: string
  params?: Record<string, unknown>
  result?: unknown
  error?: { message?: string }
}

/** Answers a method; what it throws is the answer's error. */
export type Methods = Record<string, (params: Record<string, unknown>) => unknown>

/** JSON-RPC 2.0, a message a line, as the Model Context Protocol has it on standard input and output. */
export class Peer {
  readonly #input: NodeJS.ReadableStream
  readonly #output: NodeJS.WritableStream
  readonly #asked = new Map<number, { resolve(result: unknown): void; reject(error: Error): void }>()
  #number = 0

  constructor(input: NodeJS.ReadableStream, output: NodeJS.WritableStream) {
    this.#input = input
    this.#output = output
  }

  /** Answers the other side until the input has ended and everything is answered. */
  async serve(methods: Methods): Promise<void> {
    const open = new Set<Promise<void>>()
    for await (const line of createInterface({ input: this.#input })) {
      if (line.trim() === '') continue
      const answering = this.#receive(line, methods).finally(() => open.delete(answering))
      open.add(answering)
    }
    for (const { reject } of this.#asked.values()) reject(new Error('The other side has ended.'))
    await Promise.all(open)
  }

  /** Asks the other side. */
  ask<Result>(method: string, params: object): Promise<Result> {
    this.#number += 1
    const id = this.#number
    return new Promise((resolve, reject) => {
      this.#asked.set(id, { resolve: result => resolve(result as Result), reject })
      this.#send({ id, method, params })
    })
  }

  async #receive(line: string, methods: Methods): Promise<void> {
    const message = parse(line)
    if (message === undefined) return this.#send({ id: null, error: { code: -32_700, message: 'This is no JSON.' } })
    const { id, method, params = {} } = message
    if (method === undefined) return this.#settle(message)
    // A notification has no answer.
    if (id === undefined || id === null) return
    const answer = Object.hasOwn(methods, method) ? methods[method] : undefined
    if (!answer) return this.#send({ id, error: { code: -32_601, message: `There is no method ${method}.` } })
    try {
      this.#send({ id, result: await answer(params) })
    } catch (error) {
      this.#send({ id, error: { code: -32_603, message: (error as Error).message } })
    }
  }

  #settle({ id, result, error }: Message): void {
    const asked = this.#asked.get(Number(id))
    this.#asked.delete(Number(id))
    if (error) asked?.reject(new Error(error.message ?? 'The other side refused.'))
    else asked?.resolve(result)
  }

  #send(message: object): void {
    this.#output.write(`${JSON.stringify({ jsonrpc: '2.0', ...message })}\n`)
  }
}

const parse = (line: string): Message | undefined => {
  try {
    const message: unknown = JSON.parse(line)
    return typeof message === 'object' && message !== null ? message : undefined
  } catch {
    return undefined
  }
}
