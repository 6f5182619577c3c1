import { createHash, createHmac } from 'node:crypto'
import { type OutgoingHttpHeaders, request } from 'node:http'
import { text } from 'node:stream/consumers'
import type { Credentials } from '../../shared/hmac.ts'

// A client that shares no code with the server: it implements the scheme from its description alone.

export type SentRequest = {
  method?: string
  path?: string
  body?: string
  headers?: Record<string, string>
}

export type Answered = {
  status: number
  headers: Record<string, string | string[] | undefined>
  text: string
  // biome-ignore lint/suspicious/noExplicitAny: tests look into whatever was answered
  json: any
}

/** Sends a request exactly as given. */
export const send = (
  base: string,
  {
    method = 'POST',
    path = '/graphql',
    body = '',
    headers = {},
  }: Omit<SentRequest, 'headers'> & {
    headers?: OutgoingHttpHeaders
  },
): Promise<Answered> =>
  new Promise((resolve, reject) => {
    const { hostname, port } = new URL(base)
    const sent = request({ hostname, port, method, path, headers }, async answer => {
      try {
        const received = await text(answer)
        const isJson = answer.headers['content-type']?.includes('json')
        resolve({
          status: answer.statusCode!,
          headers: answer.headers,
          text: received,
          json: isJson ? JSON.parse(received) : undefined,
        })
      } catch (error) {
        reject(error)
      }
    })
    sent.on('error', reject)
    sent.end(body)
  })

export type Signing = SentRequest & {
  /** The date header's name and value. */
  date: [name: string, value: string]
  /** The name of the header with the body's hash. */
  hash?: string
  nonce?: string
  separator?: string
}

/** The request with the headers that sign it. */
export const sign = (
  base: string,
  { apiKey, apiSecret }: Credentials,
  { date: [dateName, date], hash = 'x-content-sha256', nonce, separator = '&', ...sent }: Signing,
): Required<SentRequest> => {
  const { method = 'POST', path = '/graphql', body = '', headers = {} } = sent
  const signed: Record<string, string> = {
    host: new URL(base).host,
    [dateName]: date,
    [hash]: createHash('sha256').update(body).digest('base64'),
    ...(nonce && { 'x-nonce': nonce }),
  }
  const text = `${method}\n${path}\n${Object.values(signed).join(';')}`
  const mac = createHmac('sha256', Buffer.from(apiSecret, 'base64')).update(text).digest('base64')
  const parameters = [`Credential=${apiKey}`, `SignedHeaders=${Object.keys(signed).join(';')}`, `Signature=${mac}`]
  return {
    method,
    path,
    body,
    headers: {
      ...(method === 'POST' && { 'content-type': 'application/json' }),
      accept: 'application/json',
      ...signed,
      authorization: `HMAC-SHA256 ${parameters.join(separator)}`,
      ...headers,
    },
  }
}

/** The body of a GraphQL request. */
export const graphqlBody = (query: string, variables: object = {}): string => JSON.stringify({ query, variables })
