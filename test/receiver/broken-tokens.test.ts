import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { createReceiver, type FaultCode } from '../../receiver/index.ts'
import { verifyDeliveryToken } from '../../shared/delivery-token.ts'
import { audience, body, broken, good, issuer, jti, keys, now, sound } from './tokens.ts'

// `tidings verify` and the receiver kit must refuse every broken token, and say which check it fails.

const receive = async (token: string) => {
  let isHandled = false
  let message = ''
  const receiver = createReceiver({
    issuer,
    audience,
    keys,
    now: () => now.getTime(),
    onError: error => assert.fail(error as Error),
    onRefused: refusal => {
      message = refusal.message
    },
  })
  const answer = await receiver.receive({ authorization: `Bearer ${token}`, body }, () => {
    isHandled = true
  })
  return { ...answer, isHandled, message }
}

describe('a token', () => {
  for (const [what, token, check, says] of broken) {
    test(`${what} is refused for its ${check}`, async () => {
      const { ok, checks } = await verifyDeliveryToken(token, { keys, issuer, audience, at: now, body })
      assert.equal(ok, false)
      const failed = checks.find(({ status }) => status === 'failed')!
      assert.equal(failed.name, check)

      const { status, fault, headers, body: told, isHandled, message } = await receive(token)
      assert.deepEqual(
        { status, fault, isHandled },
        { status: 401, fault: check satisfies FaultCode, isHandled: false },
      )
      assert.equal(headers['www-authenticate'], `Bearer error="invalid_token", error_description="${check}"`)
      assert.deepEqual(JSON.parse(told), { error: check })
      assert.match(message, says ?? /./)
      // What is untrusted is told with nothing in it that a terminal obeys.
      assert.doesNotMatch(message, /[\p{Cc}\p{Cf}]/u)
    })
  }

  test('that was handled before is refused for its replay', async () => {
    const { checks } = await verifyDeliveryToken(good, {
      keys,
      issuer,
      audience,
      at: now,
      body,
      seen: it => it === jti,
    })
    assert.deepEqual(
      checks.filter(({ status }) => status === 'failed').map(({ name }) => name),
      ['replay'],
    )
  })
})

describe('a sound token', () => {
  for (const [what, token] of sound) {
    test(`${what} is accepted`, async () => {
      const { ok, checks } = await verifyDeliveryToken(token, { keys, issuer, audience, at: now, body })
      assert.deepEqual(
        checks.filter(({ status }) => status === 'failed'),
        [],
      )
      assert.equal(ok, true)
      const { status, isHandled } = await receive(token)
      assert.deepEqual({ status, isHandled }, { status: 200, isHandled: true })
    })
  }
})
