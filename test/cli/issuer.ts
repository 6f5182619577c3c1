import { createHash, generateKeyPairSync, type KeyObject, randomUUID } from 'node:crypto'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { after } from 'node:test'
import { signDeliveryToken } from '../../shared/sign-delivery-token.ts'

/** A sender of deliveries that publishes its keys, and counts how often they are fetched. */
export const startIssuer = async () => {
  const issuer = { url: '', kid: '', keys: [] as object[], fetches: 0 }
  let key: KeyObject
  const rotate = (): void => {
    const pair = generateKeyPairSync('ed25519')
    key = pair.privateKey
    issuer.kid = randomUUID()
    issuer.keys = [{ ...pair.publicKey.export({ format: 'jwk' }), kid: issuer.kid, use: 'sig', alg: 'EdDSA' }]
  }
  rotate()
  const server = createServer((request, response) => {
    if (request.url !== '/.well-known/jwks.json') return void response.writeHead(404).end()
    issuer.fetches += 1
    response.writeHead(200, { 'content-type': 'application/json' })
    response.end(JSON.stringify({ keys: issuer.keys }))
  })
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  issuer.url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  after(() => {
    server.closeAllConnections()
    server.close()
  })

  const bodyOf = (eventId: string, eventType = 'project_report_quarterly_overdue') =>
    JSON.stringify({
      webhookId: '0198a111-1111-7000-8000-00000000000a',
      eventId,
      eventType,
      eventTime: '2026-11-21T00:40:01.123+00:00',
      payload: {},
    })

  /** Of a delivery with `bodyOf(jti)`, unless another body is given. */
  const token = (
    audience: string,
    jti: string,
    { issuedAtSeconds = Math.floor(Date.now() / 1000), sub = randomUUID() as string, body = bodyOf(jti) } = {},
  ) =>
    signDeliveryToken({
      key,
      kid: issuer.kid,
      issuer: issuer.url,
      audience,
      jti,
      sub,
      bodySha256: createHash('sha256').update(body).digest('base64url'),
      issuedAtSeconds,
    })

  /** Delivers as the service does; `audience` where it is to differ from the URL. */
  const deliver = async (
    url: string,
    {
      eventId = randomUUID() as string,
      eventType = 'project_report_quarterly_overdue',
      audience = url,
      signal,
      headers: others = {},
    }: {
      eventId?: string
      eventType?: string
      audience?: string
      signal?: AbortSignal
      headers?: Record<string, string>
    } = {},
  ) => {
    const body = bodyOf(eventId, eventType)
    const authorization = `Bearer ${await token(audience, eventId, { body })}`
    const headers = { ...others, 'content-type': 'application/json', authorization }
    return fetch(url, { ...(signal && { signal }), method: 'POST', headers, body })
  }

  return Object.assign(issuer, { rotate, token, bodyOf, deliver })
}
