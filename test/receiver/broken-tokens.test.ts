import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { createReceiver, type FaultCode } from '../../receiver/index.ts'
import { brokenTokens, soundTokens } from '../../server/delivery/rehearsal/token-vectors.ts'
import { verifyDeliveryToken } from '../../shared/delivery-token.ts'
import { audience, body, good, issuer, jti, keys, mint, now } from './tokens.ts'

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

/** What the refusal of a token must say, of those that it explains. */
const SAYS: Record<string, RegExp> = {
  'unsecured, as jose makes it': /"none"/,
  'of algorithm none with a signature': /"none"/,
  'of no algorithm': /found nothing/,
  'of algorithm Ed25519': /"Ed25519"/,
  'by HS256 with the public key’s PEM as secret': /"HS256"/,
  'by RS256': /"RS256"/,
  'by PS256': /"PS256"/,
  'by ES256': /"ES256"/,
  'by Ed448': /expected an Ed25519 key, found "OKP" "Ed448"/,
  'that names an RSA key': /found "RSA"/,
  'without kid': /found nothing/,
  'with an unknown kid': /found "other"/,
  'with a number as kid': /found 1/,
  'with control characters in the kid': /\\u001b\[2Jé\\u\{202e\}/,
  'by another key of the same kid': /does not match/,
  'without its signature': /0 bytes of 64/,
  'whose signature was cut': /58 bytes of 64/,
  'whose signature has more after it': /67 bytes of 64/,
  'whose signature has one bit flipped': /does not match/,
  'whose signature is another number of the same rest': /does not match/,
  'whose signature has stray bits': /stray bits/,
  'with a critical extension': /crit in the header/,
  'with its claims not encoded (b64: false)': /b64 in the header/,
  'with b64: true as critical extension, as jose makes it': /crit/,
  'of typ at+jwt': /expected typ "JWT", found typ "at\+jwt"/,
  'of typ jwtx': /found typ "jwtx"/,
  'with a number as typ': /found typ 7/,
  'with null as typ': /found typ null/,
  'encrypted with its claims': /JWE/,
  'encrypted whole': /JWE/,
  'signed twice, one within the other': /claims: no JSON/,
  'in flattened JSON': /compact form/,
  'in general JSON': /compact form/,
  'with alg twice': /header: "alg" twice/,
  'with aud twice': /claims: "aud" twice/,
  'with jti twice, once escaped': /"jti" twice/,
  'with its claims detached': /claims: no JSON, ""/,
  padded: /signature: no base64url/,
  'with padding in the middle': /header: no base64url/,
  'in four parts, signed so': /4 part/,
  'in base64 with + and /': /signature: no base64url/,
  'with a full stop after it': /4 part/,
  'with a full stop before it': /4 part/,
  'in two parts': /2 part/,
  'with a space in it': /header: no base64url/,
  'with a tab in it': /claims: no base64url/,
  'with another after it': /5 part|five parts/,
  'of one word': /1 part/,
  'of a length that no token has': /\d{5} characters/,
  'whose header is a list': /header: no JSON object/,
  'whose claims are a text': /claims: no JSON object/,
  'whose claims are null': /claims: no JSON object, null/,
  'whose claims are no JSON': /claims: no JSON/,
  'of another issuer': /"https:\/\/evil\.example"/,
  'of an issuer with a slash at its end': /spelled differently/,
  'of an issuer in capitals': /spelled differently/,
  'of the issuer without TLS': /somebody else/,
  'of no issuer': /found nothing/,
  'for another endpoint': /somebody else/,
  'for a list of this endpoint alone': /found \["https/,
  'for no endpoint': /found nothing/,
  'for this endpoint with a slash at its end': /spelled differently/,
  'for this host in capitals': /spelled differently/,
  'for this path in another case': /somebody else/,
  'for another port': /somebody else/,
  'that has just expired': /Expired 0 s ago/,
  'that expired a second ago': /Expired 1 s ago/,
  'that expired long ago': /found 1970-01-01T00:05:00/,
  'that does not expire': /expected exp, in epoch seconds, found nothing/,
  'whose expiry is null': /found null/,
  'whose expiry is a text': /found "1795221901"/,
  'whose expiry is in milliseconds': /at most 300 s after iat/,
  'that lives for half a second too long': /at most 300 s after iat/,
  'that lives for an hour': /at most 300 s after iat/,
  'that expires as it is made': /after iat/,
  'that expires before it was made': /after iat/,
  'without jti': /found nothing/,
  'whose jti is a number': /found 42/,
  'whose jti is empty': /found ""/,
  'whose jti is another event’s': /belongs to another body/,
  'made in the future': /created in the future/i,
  'of no time': /found nothing/,
  'not valid yet': /found nbf 2026/,
  'not valid before a text': /found nbf "tomorrow"/,
  'of no time, but valid from one': /found nothing/,
  'made in the future, but valid already': /in the future/,
  'not valid before the beginning of all calendars': /found nbf -1e\+300/,
  'not valid before null': /found nbf null/,
}

describe('a token', () => {
  for (const [what, make, check] of brokenTokens) {
    test(`${what} is refused for its ${check}`, async () => {
      const token = await make(mint)
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
      assert.match(message, SAYS[what] ?? /./)
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
  for (const [what, make] of soundTokens) {
    test(`${what} is accepted`, async () => {
      const token = await make(mint)
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
