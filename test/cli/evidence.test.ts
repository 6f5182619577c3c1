import assert from 'node:assert/strict'
import { generateKeyPairSync, sign } from 'node:crypto'
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { after, before, describe, it } from 'node:test'
import { calculateJwkThumbprint } from 'jose'
import { checkEvidence } from '../../cli/verify/evidence.ts'
import { EVIDENCE_TYPE, signingInput } from '../../shared/evidence.ts'
import { type Receiver, startReceiver } from '../support/receiver.ts'
import { addProject, startTestServer, type TestServer } from '../support/server.ts'
import { temporaryFolder, tidings } from './tidings.ts'

const home = temporaryFolder()

/** The paths of all values that are no objects. */
const placesOf = (value: unknown, path: string[] = []): string[][] =>
  typeof value === 'object' && value !== null
    ? Object.entries(value).flatMap(([name, inner]) => placesOf(inner, [...path, name]))
    : [path]

const other = (value: unknown): unknown =>
  typeof value === 'string'
    ? `${value.startsWith('A') ? 'B' : 'A'}${value.slice(1)}`
    : typeof value === 'number'
      ? value + 1
      : 'x'

describe('the evidence of a delivery', () => {
  let server: TestServer
  let receiver: Receiver
  let exported: string
  let deliveryId: string

  before(async () => {
    receiver = await startReceiver()
    server = await startTestServer('sqlite')
    const as = await server.token({ permissions: ['admin'] })
    const { data } = await server.graphql(`mutation { createWebhook(url: "${receiver.url}") { id } }`, {}, as)
    await server.graphql(`mutation { pingWebhook(id: "${data.createWebhook.id}") { id } }`, {}, as)
    deliveryId = receiver.requests.at(-1)!.body.eventId
    const env = { TIDINGS_URL: server.url, TIDINGS_API_KEY: as.apiKey, TIDINGS_API_SECRET: as.apiSecret }
    const { code, stdout, stderr } = await tidings(['deliveries', 'export', deliveryId], { home, env })
    assert.equal(code, 0, stderr)
    exported = stdout
  })
  after(() => Promise.all([server.stop(), receiver.close()]))

  const verify = async (text: string, more: string[] = []) => {
    const file = join(home, 'evidence.json')
    writeFileSync(file, text)
    const { code, stdout, stderr } = await tidings(['verify', '--evidence', file, '-o', 'json', ...more], { home })
    const failed = (JSON.parse(stdout || '{"checks":[]}').checks as { name: string; status: string }[])
      .filter(({ status }) => status === 'failed')
      .map(({ name }) => name)
    return { code, failed, stderr }
  }

  it('has the body as it was sent, and the key that signed it', () => {
    const evidence = JSON.parse(exported)
    assert.equal(evidence.request.body, receiver.requests.at(-1)!.rawBody)
    assert.equal(evidence.keys[0].kid, evidence.attempts[0].keyId)
    assert.doesNotMatch(exported, /Bearer|"d":/)
  })

  it('is checked without a connection, and against the issuer’s keys', async () => {
    assert.deepEqual(await verify(exported), { code: 0, failed: [], stderr: (await verify(exported)).stderr })
    const jwks = join(home, 'jwks.json')
    writeFileSync(jwks, await (await fetch(`${server.url}/.well-known/jwks.json`)).text())
    assert.equal((await verify(exported, ['--jwks', jwks])).code, 0)
    writeFileSync(jwks, '{"keys":[]}')
    assert.deepEqual((await verify(exported, ['--jwks', jwks])).failed, ['issuer'])
  })

  it('is refused, whatever of it was changed', async () => {
    const jwks = join(home, 'issuer.json')
    writeFileSync(jwks, await (await fetch(`${server.url}/.well-known/jwks.json`)).text())
    const refused = async (change: (evidence: ReturnType<typeof JSON.parse>) => void) => {
      const evidence = JSON.parse(exported)
      change(evidence)
      return (await checkEvidence(evidence, JSON.parse(readFileSync(jwks, 'utf8')).keys)).some(
        ({ status }) => status === 'failed',
      )
    }
    assert.equal(await refused(() => {}), false)
    const changes: [string, (evidence: ReturnType<typeof JSON.parse>) => void][] = [
      ...placesOf(JSON.parse(exported)).map((path): (typeof changes)[number] => [
        path.join('.'),
        evidence => {
          const inner = path.slice(0, -1).reduce((value, name) => value[name], evidence)
          inner[path.at(-1)!] = other(inner[path.at(-1)!])
        },
      ]),
      ['an attempt added', evidence => evidence.attempts.push({ ...evidence.attempts[0], number: 2 })],
      ['an attempt left out', evidence => evidence.attempts.pop()],
      ['a field added', evidence => Object.assign(evidence.delivery, { note: 'paid' })],
      ['a key left out', evidence => evidence.keys.pop()],
      ['the signature left out', evidence => Object.assign(evidence, { signature: '' })],
    ]
    for (const [what, change] of changes) assert.equal(await refused(change), true, what)
  })

  it('is refused when somebody else has signed it', async () => {
    const { publicKey, privateKey } = generateKeyPairSync('ed25519')
    const { kty, crv, x } = publicKey.export({ format: 'jwk' })
    const kid = await calculateJwkThumbprint({ kty: kty!, crv: crv!, x: x! })
    const { signature, ...content } = JSON.parse(exported)
    content.attempts[0].statusCode = 500
    content.keys = [{ kty, crv, x, kid, use: 'sig', alg: 'EdDSA' }]
    const header = Buffer.from(JSON.stringify({ alg: 'EdDSA', kid, typ: EVIDENCE_TYPE })).toString('base64url')
    const forged = sign(null, Buffer.from(signingInput(header, content)), privateKey).toString('base64url')
    const jwks = join(home, 'issuer.json')
    writeFileSync(jwks, await (await fetch(`${server.url}/.well-known/jwks.json`)).text())
    const text = JSON.stringify({ ...content, signature: `${header}..${forged}` })
    assert.deepEqual((await verify(text, ['--jwks', jwks])).failed, ['issuer'])
    assert.match((await verify(text)).stderr, /Whose key that is was not checked/)
  })

  it('is none of what it is not', async () => {
    for (const text of ['{}', 'null', '[]', '{"form":"tidings-evidence-1","attempts":[null],"keys":[]}'])
      assert.equal((await verify(text)).code, 2, text)
  })

  it('is not told to a token that does not see the delivery, nor beside other fields', async () => {
    const elsewhere = await addProject(server.database)
    const limited = await server.token({ permissions: ['read'], organisationIds: [elsewhere.organisationId] })
    const document = `{ deliveryEvidence(deliveryId: "${deliveryId}") }`
    assert.equal((await server.graphql(document, {}, limited)).errors![0]!.extensions.code, 'NOT_FOUND')
    const { errors } = await server.graphql(`{ deliveryEvidence(deliveryId: "${deliveryId}") viewer { id } }`)
    assert.match(errors![0]!.message, /in a request of its own/)
  })
})
