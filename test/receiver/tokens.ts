import { createPublicKey, type KeyObject } from 'node:crypto'
import { Mint } from '../../server/delivery/rehearsal/mint.ts'
import { ed448, keyOfByte, rsa } from '../../server/delivery/rehearsal/strangers.ts'
import type { Jwk } from '../../shared/delivery-token.ts'

// A delivery with fixed keys and a fixed time, so that its tokens are always the same: docs/receivers/vectors.json is
// written for it.

export const issuer = 'https://tidings.example'
export const audience = 'https://receiver.example:8443/hooks/Acme'
export const jti = '0198a111-1111-7000-8000-000000000001'
export const iat = 1_795_221_601
/** A second after the token was made. */
export const now = new Date((iat + 1) * 1000)
export const webhookId = '0198a111-1111-7000-8000-00000000000a'
export const body = JSON.stringify({
  webhookId,
  eventId: jti,
  eventType: 'token_expired',
  eventTime: '2026-11-21T00:40:01.123+00:00',
  payload: { accessTokenId: '0198a111-1111-7000-8000-00000000000c' },
})
export const kid = 'kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k'

const ed25519 = keyOfByte(1)
const p256 = createPublicKey({
  format: 'jwk',
  key: {
    kty: 'EC',
    x: 'S9eGt0_t_dv4Uckq9I_NF7opi1kzN07hdIBHYWiiVao',
    y: 'QLgXlby5HKcCvObUlKW5lpQCWjbmltNmwVNJgXdcd-s',
    crv: 'P-256',
  },
})
const published = (key: KeyObject, kid: string): Jwk => ({ ...key.export({ format: 'jwk' }), kid, use: 'sig' })
export const keys: Jwk[] = [
  published(createPublicKey(ed25519), kid),
  published(createPublicKey(rsa), 'rsa'),
  published(p256, 'p256'),
  published(createPublicKey(ed448), 'ed448'),
  // Keys of two kinds under one kid.
  published(createPublicKey(rsa), 'shared'),
  published(createPublicKey(ed25519), 'shared'),
]

export const mint = new Mint({
  issuer,
  audience,
  kid,
  key: ed25519,
  webhookId,
  jti,
  sub: '0198a111-1111-7000-8000-00000000000e',
  iat,
  body,
})
export const { good } = mint
