import { randomUUID } from 'node:crypto'
import { graphqlBody, send, sign } from '../../http/signed-client.ts'

export type Credentials = { id: string; apiKey: string; apiSecret: string }

export type Answer = {
  status: number
  headers: Record<string, string | string[] | undefined>
  // biome-ignore lint/suspicious/noExplicitAny: a case reads what it asked for
  data: any
  /** The code of the first error. */
  code: string | undefined
  message: string | undefined
  sentAt: number
  answeredAt: number
}

/** Asks one server as one token. A broken connection is an answer with status 0 and code `NO_ANSWER`. */
export type Client = (document: string, variables?: object, headers?: Record<string, string>) => Promise<Answer>

export const clientOf =
  (base: string, credentials: Credentials): Client =>
  async (document, variables = {}, headers = {}) => {
    const body = graphqlBody(document, variables)
    const date: [string, string] = ['x-date', new Date().toISOString()]
    const sentAt = Date.now()
    try {
      const signed = sign(base, credentials, { body, date, nonce: randomUUID(), headers })
      const answered = await send(base, signed)
      const error = answered.json?.errors?.[0]
      return {
        status: answered.status,
        headers: answered.headers,
        data: answered.json?.data,
        code: error?.extensions?.code ?? (error ? 'NO_CODE' : undefined),
        message: error?.message,
        sentAt,
        answeredAt: Date.now(),
      }
    } catch (error) {
      return {
        status: 0,
        headers: {},
        data: undefined,
        code: 'NO_ANSWER',
        message: (error as Error).message,
        sentAt,
        answeredAt: Date.now(),
      }
    }
  }

/** What a mutation or query answered, which must be without an error. */
export const done = async (answer: Promise<Answer>) => {
  const { status, data, code, message } = await answer
  if (code !== undefined || !data) throw new Error(`Answered ${status}, ${code}: ${message}`)
  return Object.values(data)[0] as Record<string, never> & { id: string }
}
