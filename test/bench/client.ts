import { randomUUID } from 'node:crypto'
import { Agent, request } from 'undici'
import { type Credentials, signRequest } from '../../shared/hmac.ts'

/** The answer: the GraphQL error's code or null, and the first row of a mutation's answer. */
export type Answer = { status: number; code: string | null; message?: string; row?: Record<string, unknown> }

type Body = {
  data?: Record<string, Record<string, unknown>> | null
  errors?: { message: string; extensions?: { code?: string } }[]
}

/** Signs and sends GraphQL requests over connections that are kept. */
export const createClient = ({ connections = 256 }: { connections?: number } = {}) => {
  const dispatcher = new Agent({ connections, keepAliveTimeout: 60_000, headersTimeout: 0, bodyTimeout: 0 })
  return {
    async send(base: string, credentials: Credentials, query: string, variables: object = {}): Promise<Answer> {
      const { url, options } = signed(base, credentials, query, variables)
      const { statusCode, body } = await request(url, { ...options, dispatcher })
      const text = await body.text()
      if (text === '') throw new Error(`${statusCode} without a body answers ${query}`)
      const { data, errors } = JSON.parse(text) as Body
      const [error] = errors ?? []
      const row = data && Object.values(data)[0]
      return {
        status: statusCode,
        code: error ? (error.extensions?.code ?? 'no code') : null,
        ...(error && { message: error.message }),
        ...(row && { row }),
      }
    },
    close: () => dispatcher.destroy(),
  }
}

export type Client = ReturnType<typeof createClient>

/** A signed POST to /graphql, for undici. */
export const signed = (base: string, credentials: Credentials, query: string, variables: object) => {
  const url = new URL('/graphql', base)
  const body = JSON.stringify({ query, variables })
  const headers = signRequest({ method: 'POST', url, body, credentials, at: new Date(), nonce: randomUUID() })
  return {
    url,
    options: {
      method: 'POST' as const,
      headers: { ...headers, 'content-type': 'application/json', accept: 'application/json' },
      body,
    },
  }
}

/** The row of a mutation's answer. Throws an Error with any other answer. */
export const must = ({ row, status, code, message }: Answer): Record<string, unknown> => {
  if (!row || code) throw new Error(`The mutation was answered with ${status} ${code}: ${message}`)
  return row
}
