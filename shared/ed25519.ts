import { fromCanonicalBase64url } from './bytes.ts'
import { nodeCrypto } from './node-crypto.ts'

type Bytes = Uint8Array<ArrayBuffer>
type Verify = (data: Bytes, signature: Bytes) => boolean | Promise<boolean>

/** The length of an Ed25519 public key, RFC 8032 section 5.1.5. */
const KEY_BYTES = 32
/** What comes before the key's bytes in its DER form, RFC 8410 section 4. */
const SPKI = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00]

/** The bytes of a public key's `x`; undefined if it is not canonical base64url of 32 bytes. */
export const keyBytes = (x: unknown): Bytes | undefined => {
  const bytes = typeof x === 'string' ? fromCanonicalBase64url(x) : undefined
  return bytes?.length === KEY_BYTES ? bytes : undefined
}

/** Imported keys by the object that they were read from, as long as its `x` stays the same. */
const imported = new WeakMap<object, { x: unknown; verify: Verify | Promise<Verify> }>()

/**
 * What verifies signatures by a public JWK; each object is imported once. Only `x` counts: the other members (alg, use,
 * key_ops) must not decide how a key is used. Throws or rejects if the key is not valid.
 */
export const verifierOf = (jwk: { x?: unknown }): Verify | Promise<Verify> => {
  const known = imported.get(jwk)
  if (known?.x === jwk.x && known) return known.verify
  const bytes = keyBytes(jwk.x)
  if (bytes === undefined) throw new TypeError('This is no Ed25519 public key.')
  const verify = importKey(bytes)
  imported.set(jwk, { x: jwk.x, verify })
  return verify
}

const importKey = (bytes: Bytes): Verify | Promise<Verify> => {
  if (nodeCrypto) {
    const { createPublicKey, verify } = nodeCrypto
    const key = createPublicKey({ key: Uint8Array.from([...SPKI, ...bytes]), format: 'der', type: 'spki' })
    return (data, signature) => verify(null, data, key, signature)
  }
  const { subtle } = crypto
  return subtle
    .importKey('raw', bytes, { name: 'Ed25519' }, false, ['verify'])
    .then(key => (data, signature) => subtle.verify({ name: 'Ed25519' }, key, signature, data))
}
