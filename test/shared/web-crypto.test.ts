import assert from 'node:assert/strict'
import { createHash, generateKeyPairSync } from 'node:crypto'
import { before, beforeEach, describe, it, mock } from 'node:test'

// Runtimes without Node's crypto verify by WebCrypto, which may fail asynchronously.

// In a process of its own: it takes Node's crypto from its process.

const { privateKey, publicKey } = generateKeyPairSync('ed25519')
const body = JSON.stringify({ eventId: 'j', eventType: 'ping', webhookId: 'w', payload: {} })
const issuedAtSeconds = 1_795_221_601

describe('a receiver that verifies by WebCrypto', () => {
  let verify: () => Promise<boolean>
  before(async () => {
    Object.assign(process, { getBuiltinModule: undefined })
    const { verifyDeliveryToken } = await import('../../shared/delivery-token.ts')
    const { signDeliveryToken } = await import('../../shared/sign-delivery-token.ts')
    const given = {
      kid: 'k',
      issuer: 'https://issuer.example',
      audience: 'https://receiver.example/',
      jti: 'j',
      sub: 's',
    }
    const bodySha256 = createHash('sha256').update(body).digest('base64url')
    const token = await signDeliveryToken({ ...given, key: privateKey, bodySha256, issuedAtSeconds })
    verify = async () => {
      // A key is imported once for each object.
      const keys = [{ ...publicKey.export({ format: 'jwk' }), kid: 'k', use: 'sig', alg: 'EdDSA' }] as never
      const at = new Date(issuedAtSeconds * 1000)
      return (await verifyDeliveryToken(token, { ...given, keys, at, body, webhookIds: ['w'], seen: () => false })).ok
    }
  })
  beforeEach(() => mock.restoreAll())

  it('accepts a valid delivery', async () => {
    const asked = mock.method(crypto.subtle, 'verify')
    assert.equal(await verify(), true)
    assert.equal(asked.mock.callCount(), 1)
  })

  it('refuses a delivery whose signature could not be verified', async () => {
    const failed = mock.method(crypto.subtle, 'verify', () => Promise.reject(new Error('out of memory')))
    assert.equal(await verify(), false)
    assert.equal(failed.mock.callCount(), 1)
  })

  it('refuses a delivery whose key could not be imported', async () => {
    mock.method(crypto.subtle, 'importKey', () => Promise.reject(new Error('not supported')))
    assert.equal(await verify(), false)
  })
})
