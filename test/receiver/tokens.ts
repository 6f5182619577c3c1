import { createHash, createHmac, createPrivateKey, createPublicKey, type KeyObject, sign } from 'node:crypto'
import {
  CompactEncrypt,
  CompactSign,
  EncryptJWT,
  FlattenedSign,
  GeneralSign,
  type JWTHeaderParameters,
  SignJWT,
  UnsecuredJWT,
} from 'jose'
import type { CheckName, Jwk } from '../../shared/delivery-token.ts'

// Tokens made like other libraries make them, most of them broken in one way each. The keys are fixed, so that the
// tokens are always the same: docs/receivers/vectors.json is written from them.

export const issuer = 'https://tidings.example'
export const audience = 'https://receiver.example:8443/hooks/Acme'
export const jti = '0198a111-1111-7000-8000-000000000001'
export const iat = 1_795_221_601
const exp = iat + 300
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

/** A key whose secret is one byte again and again; `der` is what PKCS #8 (RFC 8410) puts before it. */
const pairOf = (der: string, length: number, byte: number) => {
  const key = Buffer.concat([Buffer.from(der, 'hex'), Buffer.alloc(length, byte)])
  const privateKey = createPrivateKey({ key, format: 'der', type: 'pkcs8' })
  return { privateKey, publicKey: createPublicKey(privateKey) }
}
const ED25519 = '302e020100300506032b657004220420'
const ed25519 = pairOf(ED25519, 32, 1)
const untrusted = pairOf(ED25519, 32, 2)
const ed448 = pairOf('3047020100300506032b6571043b0439', 57, 3)
const rsaKey = createPrivateKey({
  format: 'jwk',
  key: {
    kty: 'RSA',
    n: 'v3lwpiffUz-inzXXPXqyMpEYz13yzFRNo-J6UF9_TnaHBC0k_qTgn51s9so-oFsfvbCyHudcyg_LXWivAt5q-1UH7CzfLaw30crXttOFZ5fSMMcFqHsBTd7Jz0nipeZeR6aBkVNiSU3mT3bEmXHh6cTH6VE6rkLJ_GrjQ5_VJ1h0h4mfO4_vmH7VtczIYn56-ielJxyHLtTAyGkSgl4I4s1cXcuDtmITQrC44SyouIg5WVuectnvRYxHy51b68SuChJtyZthbJh0LC5ETAQvd5lNuz43Pqb-DpqBZbJdAUwTT4cQdN6QnPn5YMq8T51PK_3YZoRPIO0T0LX611L6Nw',
    e: 'AQAB',
    d: 'BBAnWbQT5ms9xkoffw1ilai3Kym8gSVMbOAqWOVF4s9CFM601ioY61otJnZRN0u0hzmmKS2FewyajXXIucAot5xs0B0XP7VdWkU6Wzju2Xo2Lbtmo9Yd-qrx6ZIRGxS7egkomIH5kahzbP4OTiesAK8HA2AqMh0QHM9tDJGdaNNlM61D3FiJVBJnUcWKDS1VHkVKYS1Kmqqk14GCY-79TL6iuIbbEgNpqeuCyRZxnmsUtzZkTDu_SrTzo3Quf-DWOXUK4vecftSwn4_7de5Vqoluz1LfONa2ffq7t3jereoKW4Lkv9r_5ylibsNJHL1yxbIT3_jnAE5EWWoYrAs9QQ',
    p: '4fccryVFMIRXgHB-r9SiGYbfvkgvtIt57mOYw9yUBANYGDd5o8r0AyqoW6yJYQ6AuPveZLvdsoZBIckbxgYR-LP5udBkSu2_ez1Y7vtJk78WlcY3q4hVUNLElNHt4autELeRsQf0QjKQjeE7Q-fJPzKQDHRc-VzfkotdS_u-Fnc',
    q: '2Oy1_gUZdFvwXlBIqUsPqoxCRzSxepmzO-GAAyFPfUFA1APdR2pDnkVudC3XAVWOGC1Z0zIuhfbb-Wf8W2duUnfTdmWeyXf761HeCTbZIReIap1euuPRM50P34sZjdZhpKEwne4TPCTG0ri7eFPFWiaE8OGuxH0KYkZ1_bXOakE',
    dp: 'lQg-SuXx9EXU0ElhxOYg42UpPH6vuAwlpyzZHJTmqp7qA07TU0wQE-aWk6AAG5tNGrRDwXyGg7A4VOgnATwPrlBFbGAdRa34lHepqDTkGiX152KMZP3OBzh7nwu2MRjhVB0-Ydw1JVPkMy9Rvz-oY54dk5lLmMvASQ7RwcOPY5E',
    dq: 'SXU3V_MAILA1oKqNQI8DmhxvIU_NvheoY2HEiMrR8TeUrXc1isaIaWNXuQ4A3hnLyZIp9ePrb0AeU8IL6iQHbvPW7yQQdmckLxcFGpexRYyDjJ8IAj-9iz3nryqal7Z-UFKpdQG3D8ngbmFSUrgDf7jFkhDKrw0s5AS6VhUn9kE',
    qi: 'rW1-etdaTHQA9hkWct0b1Czs61jVJDPXPX5wRETJ4w_3bSZwFvVpJCTvJb24u7jU-M4aWgk5-rk03eWrAwZI9l2PKtghqA4XM0h3ULOucnX86lN_b6v21LpSy2GHsbcj4pHacNmcfWUlLOeTQeGEMunjqVUFRlEXX65R8-drPpU',
  },
})
const rsa = { privateKey: rsaKey, publicKey: createPublicKey(rsaKey) }
const p256 = {
  publicKey: createPublicKey({
    format: 'jwk',
    key: {
      kty: 'EC',
      x: 'S9eGt0_t_dv4Uckq9I_NF7opi1kzN07hdIBHYWiiVao',
      y: 'QLgXlby5HKcCvObUlKW5lpQCWjbmltNmwVNJgXdcd-s',
      crv: 'P-256',
    },
  }),
}
const published = (pair: { publicKey: KeyObject }, kid: string): Jwk => ({
  ...pair.publicKey.export({ format: 'jwk' }),
  kid,
  use: 'sig',
})
export const kid = 'kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k'
export const keys: Jwk[] = [
  published(ed25519, kid),
  published(rsa, 'rsa'),
  published(p256, 'p256'),
  published(ed448, 'ed448'),
  // Keys of two kinds under one kid.
  published(rsa, 'shared'),
  published(ed25519, 'shared'),
]

const header = { alg: 'EdDSA', kid, typ: 'JWT' }
const digestOf = (bytes: string | Uint8Array) => createHash('sha256').update(bytes).digest('base64url')
const claims = {
  iss: issuer,
  aud: audience,
  sub: '0198a111-1111-7000-8000-00000000000e',
  jti,
  iat,
  exp,
  body_sha256: digestOf(body),
}

/** As jose signs, which leaves the claims as they are given. */
const byJose = (claimed: object = {}, head: object = {}, key: KeyObject = ed25519.privateKey): Promise<string> =>
  new SignJWT({ ...claims, ...claimed })
    .setProtectedHeader({ ...header, ...head } as JWTHeaderParameters)
    .sign(key, 'crit' in head ? { crit: { b64: true } } : {})

const encode = (text: string | Uint8Array): string => Buffer.from(text as string).toString('base64url')
const json = JSON.stringify

/** As no library would sign: any text as header and claims, with a matching signature. */
const byHand = (
  head: string | Uint8Array,
  content: string | Uint8Array,
  key: KeyObject = ed25519.privateKey,
): string => {
  const input = `${encode(head)}.${encode(content)}`
  return `${input}.${encode(sign(null, Buffer.from(input), key))}`
}
const withHeader = (head: object, key?: KeyObject): string => byHand(json({ ...header, ...head }), json(claims), key)
const withClaims = (claimed: object): string => byHand(json(header), json({ ...claims, ...claimed }))
const byHmac = (secret: string | Uint8Array, head: object = {}): string => {
  const input = `${encode(json({ ...header, alg: 'HS256', ...head }))}.${encode(json(claims))}`
  return `${input}.${createHmac('sha256', secret).update(input).digest('base64url')}`
}

/** Any header and claims, encoded as given, with a matching signature. */
const signedAs = (head: string, content: string): string => {
  const input = `${head}.${content}`
  return `${input}.${encode(sign(null, Buffer.from(input), ed25519.privateKey))}`
}
const ALPHABET = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_'
/** The same bytes in base64url whose last character has a bit that means nothing. */
const strayBits = (text: string): string => {
  // White space in JSON changes nothing, and makes a length that has such bits.
  const bytes = Buffer.from(text, 'base64url')
  const padded = bytes.length % 3 === 0 ? encode(Buffer.concat([bytes, Buffer.from(' ')])) : text
  return padded.slice(0, -1) + ALPHABET[ALPHABET.indexOf(padded.at(-1)!) + 1]
}

/** The same content in base64url, and one character more: six bits, which are no byte. */
const strayCharacter = (text: string): string => {
  const content = Buffer.from(text, 'base64url').toString()
  return `${encode(content.padEnd(content.length + ((3 - (Buffer.byteLength(content) % 3)) % 3)))}A`
}

/** Claims in which base64url has a `-` or a `_`, and an `A` after a character whose last bit is set. */
const varied = encode(json({ ...claims, sub: '??>>~~' }))
const oddThenA = new RegExp(`([${[...ALPHABET].filter((_, bits) => bits % 2 === 1).join('')}])A`)

export const good = await byJose()
const [goodHeader, goodClaims, goodSignature] = good.split('.') as [string, string, string]
const pem = ed25519.publicKey.export({ format: 'pem', type: 'spki' })
const x = Buffer.from(ed25519.publicKey.export({ format: 'jwk' }).x!, 'base64url')
const ownKey = untrusted.publicKey.export({ format: 'jwk' })
const secret = new Uint8Array(32)

/** The last character of 64 bytes in base64url has four bits that mean nothing. */
const lastCharacterChanged = (): string => {
  return good.slice(0, -1) + ALPHABET[ALPHABET.indexOf(good.at(-1)!) + 1]
}
const bitFlipped = (): string => {
  const bytes = Buffer.from(goodSignature, 'base64url')
  bytes[10]! ^= 1
  return `${goodHeader}.${goodClaims}.${encode(bytes)}`
}
/** S + L is the same number to a careless verifier (RFC 8032 section 5.1.7). */
const malleable = (): string => {
  const L = 2n ** 252n + 27742317777372353535851937790883648493n
  const bytes = Buffer.from(goodSignature, 'base64url')
  let s = BigInt(`0x${Buffer.from(bytes.subarray(32)).reverse().toString('hex')}`) + L
  for (let i = 32; i < 64; i++, s >>= 8n) bytes[i] = Number(s & 255n)
  return `${goodHeader}.${goodClaims}.${encode(bytes)}`
}

/** The case, the token, the first failing check, and the required text of the fault. */
export const broken: [what: string, token: string, check: CheckName, says?: RegExp][] = [
  // algorithm
  ['unsecured, as jose makes it', new UnsecuredJWT(claims).encode(), 'algorithm', /"none"/],
  ['of algorithm none with a signature', withHeader({ alg: 'none' }), 'algorithm', /"none"/],
  ['of algorithm nOnE', withHeader({ alg: 'nOnE' }), 'algorithm'],
  ['of no algorithm', withHeader({ alg: undefined }), 'algorithm', /found nothing/],
  ['of two algorithms', withHeader({ alg: ['EdDSA', 'none'] }), 'algorithm'],
  ['of a list of the algorithm alone', withHeader({ alg: ['EdDSA'] }), 'algorithm'],
  ['of algorithm eddsa', withHeader({ alg: 'eddsa' }), 'algorithm'],
  ['of algorithm Ed25519', withHeader({ alg: 'Ed25519' }), 'algorithm', /"Ed25519"/],
  ['by HS256 with the public key’s PEM as secret', byHmac(pem), 'algorithm', /"HS256"/],
  ['by HS256 with the public key’s bytes as secret', byHmac(x), 'algorithm'],
  ['by HS256 with the empty secret', byHmac(''), 'algorithm'],
  ['by HS256 that says EdDSA', byHmac(x, { alg: 'EdDSA' }), 'signature'],
  ['by RS256', await byJose({}, { alg: 'RS256', kid: 'rsa' }, rsa.privateKey), 'algorithm', /"RS256"/],
  ['by PS256', withHeader({ alg: 'PS256', kid: 'rsa' }), 'algorithm', /"PS256"/],
  ['by ES256', withHeader({ alg: 'ES256', kid: 'p256' }), 'algorithm', /"ES256"/],

  // key
  ['by Ed448', withHeader({ kid: 'ed448' }, ed448.privateKey), 'key', /expected an Ed25519 key, found "OKP" "Ed448"/],
  ['that names an RSA key', withHeader({ kid: 'rsa' }), 'key', /found "RSA"/],
  ['without kid', await byJose({}, { kid: undefined }), 'key', /found nothing/],
  ['with an unknown kid', await byJose({}, { kid: 'other' }, untrusted.privateKey), 'key', /found "other"/],
  ['with a number as kid', withHeader({ kid: 1 }), 'key', /found 1/],
  ['with null as kid', withHeader({ kid: null }), 'key'],
  ['with a list as kid', withHeader({ kid: [kid] }), 'key'],
  ['with a kid in another case', withHeader({ kid: kid.toLowerCase() }), 'key'],
  ['with a path as kid', withHeader({ kid: '../../../../dev/null' }), 'key'],
  ['with SQL as kid', withHeader({ kid: "x' UNION SELECT 'AA" }), 'key'],
  ['with control characters in the kid', withHeader({ kid: '\u001b[2Jé\u202e' }), 'key', /\\u001b\[2Jé\\u\{202e\}/],
  ['with half a character as kid', withHeader({ kid: '\ud800' }), 'key'],
  ['with its own key as jwk', await byJose({}, { kid: 'own', jwk: ownKey }, untrusted.privateKey), 'key'],

  // signature
  ['by another key of the same kid', await byJose({}, {}, untrusted.privateKey), 'signature', /does not match/],
  [
    'with its own key as jwk, of a kid that is known',
    await byJose({}, { jwk: ownKey }, untrusted.privateKey),
    'signature',
  ],
  ['with a certificate as x5c', await byJose({}, { x5c: ['MIIB'] }, untrusted.privateKey), 'signature'],
  [
    'with an address of keys as jku',
    await byJose({}, { jku: 'https://evil.example/jwks.json' }, untrusted.privateKey),
    'signature',
  ],
  [
    'with an address of keys as x5u',
    await byJose({}, { x5u: 'https://evil.example/x.pem' }, untrusted.privateKey),
    'signature',
  ],
  ['with other claims', `${goodHeader}.${encode(json({ ...claims, jti: 'x' }))}.${goodSignature}`, 'signature'],
  ['with another header', `${encode(json({ ...header, x: 1 }))}.${goodClaims}.${goodSignature}`, 'signature'],
  ['without its signature', `${goodHeader}.${goodClaims}.`, 'signature', /0 bytes of 64/],
  ['whose signature was cut', good.slice(0, -8), 'signature', /58 bytes of 64/],
  ['whose signature has more after it', `${good}AAAA`, 'signature', /67 bytes of 64/],
  ['whose signature has one bit flipped', bitFlipped(), 'signature', /does not match/],
  ['whose signature is all zeros', `${goodHeader}.${goodClaims}.${encode(new Uint8Array(64))}`, 'signature'],
  ['whose signature is another number of the same rest', malleable(), 'signature', /does not match/],
  ['whose signature has stray bits', lastCharacterChanged(), 'signature', /stray bits/],

  // format
  ['with a critical extension', withHeader({ crit: ['exp'] }), 'format', /crit in the header/],
  ['with its claims not encoded (b64: false)', withHeader({ b64: false }), 'format', /b64 in the header/],
  [
    'with b64: true as critical extension, as jose makes it',
    await byJose({}, { b64: true, crit: ['b64'] }),
    'format',
    /crit/,
  ],
  ['of typ at+jwt', await byJose({}, { typ: 'at+jwt' }), 'format', /expected typ "JWT", found typ "at\+jwt"/],
  ['of typ jwtx', withHeader({ typ: 'jwtx' }), 'format', /found typ "jwtx"/],
  ['with a number as typ', withHeader({ typ: 7 }), 'format', /found typ 7/],
  ['with null as typ', withHeader({ typ: null }), 'format', /found typ null/],
  [
    'encrypted with its claims',
    await new EncryptJWT(claims)
      .setProtectedHeader({ alg: 'dir', enc: 'A256GCM' })
      .setInitializationVector(new Uint8Array(12))
      .encrypt(secret),
    'format',
    /JWE/,
  ],
  [
    'encrypted whole',
    await new CompactEncrypt(Buffer.from(good))
      .setProtectedHeader({ alg: 'dir', enc: 'A256GCM', cty: 'JWT' })
      .setInitializationVector(new Uint8Array(12))
      .encrypt(secret),
    'format',
    /JWE/,
  ],
  [
    'signed twice, one within the other',
    await new CompactSign(Buffer.from(good)).setProtectedHeader({ ...header, cty: 'JWT' }).sign(ed25519.privateKey),
    'format',
    /claims: no JSON/,
  ],
  [
    'in flattened JSON',
    json(await new FlattenedSign(Buffer.from(json(claims))).setProtectedHeader(header).sign(ed25519.privateKey)),
    'format',
    /compact form/,
  ],
  [
    'in general JSON',
    json(
      await new GeneralSign(Buffer.from(json(claims)))
        .addSignature(ed25519.privateKey)
        .setProtectedHeader(header)
        .sign(),
    ),
    'format',
    /compact form/,
  ],
  ['with alg twice', byHand(`{"alg":"none",${json(header).slice(1)}`, json(claims)), 'format', /header: "alg" twice/],
  [
    'with aud twice',
    byHand(json(header), `{"aud":"https://x.example",${json(claims).slice(1)}`),
    'format',
    /claims: "aud" twice/,
  ],
  [
    'with jti twice, once escaped',
    byHand(json(header), `{"\\u006ati":"x",${json(claims).slice(1)}`),
    'format',
    /"jti" twice/,
  ],
  ['with its claims detached', `${goodHeader}..${goodSignature}`, 'format', /claims: no JSON, ""/],
  ['padded', `${goodHeader}.${goodClaims}.${goodSignature}==`, 'format', /signature: no base64url/],
  ['with padding in the middle', `${goodHeader}=.${goodClaims}.${goodSignature}`, 'format', /header: no base64url/],
  ['with stray bits at its header’s end, signed so', signedAs(strayBits(encode(json(header))), goodClaims), 'format'],
  ['with stray bits at its claims’ end, signed so', signedAs(goodHeader, strayBits(goodClaims)), 'format'],
  ['with a stray character after its claims, signed so', signedAs(goodHeader, strayCharacter(goodClaims)), 'format'],
  [
    'with a stray star in its claims, signed so',
    signedAs(goodHeader, `${goodClaims.slice(0, 8)}*${goodClaims.slice(8)}`),
    'format',
  ],
  [
    'with a stray star for an A in its claims, signed so',
    signedAs(goodHeader, goodClaims.replace(oddThenA, '$1*')),
    'format',
  ],
  [
    'with a stray + and / in its claims, signed so',
    signedAs(goodHeader, varied.replaceAll('-', '+').replaceAll('_', '/')),
    'format',
  ],
  ['in four parts, signed so', signedAs(good.slice(0, good.lastIndexOf('.')), 'AA'), 'format', /4 part/],
  [
    'with its header padded, signed so',
    signedAs(`${goodHeader}${'='.repeat(-goodHeader.length & 3)}=`, goodClaims),
    'format',
  ],
  ['in base64 with + and /', `${goodHeader}.${goodClaims}.${'+/'.repeat(43)}`, 'format', /signature: no base64url/],
  ['with a full stop after it', `${good}.`, 'format', /4 part/],
  ['with a full stop before it', `.${good}`, 'format', /4 part/],
  ['in two parts', `${goodHeader}.${goodClaims}`, 'format', /2 part/],
  ['with a space in it', good.replace('.', ' .'), 'format', /header: no base64url/],
  ['with a tab in it', good.replace('.', '.\t'), 'format', /claims: no base64url/],
  ['with another after it', `${good}, Bearer ${good}`, 'format', /5 part|five parts/],
  ['of one word', 'token', 'format', /1 part/],
  ['of nothing but full stops', '..', 'format'],
  ['in other letters', good.replace('.', '．'), 'format'],
  ['of a length that no token has', withClaims({ x: 'x'.repeat(20_000) }), 'format', /\d{5} characters/],
  ['whose header is a list', byHand(json([header]), json(claims)), 'format', /header: no JSON object/],
  ['whose claims are a text', byHand(json(header), '"claims"'), 'format', /claims: no JSON object/],
  ['whose claims are null', byHand(json(header), 'null'), 'format', /claims: no JSON object, null/],
  ['whose claims are no JSON', byHand(json(header), '{iss:1}'), 'format', /claims: no JSON/],
  ['whose claims have NaN in them', byHand(json(header), `{"x":NaN,${json(claims).slice(1)}`), 'format'],
  ['whose claims have more after them', byHand(json(header), `${json(claims)}{}`), 'format'],
  ['whose claims begin with a byte order mark', byHand(json(header), `\uFEFF${json(claims)}`), 'format'],
  ['whose claims are no UTF-8', byHand(json(header), new Uint8Array([0x7b, 0xff, 0x7d])), 'format'],
  ['whose claims are UTF-16', byHand(json(header), Buffer.from(json(claims), 'utf16le')), 'format'],

  // issuer
  ['of another issuer', await byJose({ iss: 'https://evil.example' }), 'issuer', /"https:\/\/evil\.example"/],
  ['of an issuer with a slash at its end', await byJose({ iss: `${issuer}/` }), 'issuer', /spelled differently/],
  ['of an issuer in capitals', await byJose({ iss: 'HTTPS://TIDINGS.EXAMPLE' }), 'issuer', /spelled differently/],
  ['of the issuer without TLS', await byJose({ iss: 'http://tidings.example' }), 'issuer', /somebody else/],
  ['of the issuer in a list', withClaims({ iss: [issuer] }), 'issuer'],
  ['of no issuer', await byJose({ iss: undefined }), 'issuer', /found nothing/],
  ['of an issuer that begins as ours', await byJose({ iss: `${issuer}.evil.example` }), 'issuer'],

  // audience
  ['for another endpoint', await byJose({ aud: 'https://other.example/hooks' }), 'audience', /somebody else/],
  ['for several endpoints', await byJose({ aud: [audience, 'https://other.example/hooks'] }), 'audience'],
  ['for a list of this endpoint alone', await byJose({ aud: [audience] }), 'audience', /found \["https/],
  ['for no endpoint', await byJose({ aud: undefined }), 'audience', /found nothing/],
  ['for an empty text', await byJose({ aud: '' }), 'audience'],
  ['for an empty list', await byJose({ aud: [] }), 'audience'],
  [
    'for this endpoint with a slash at its end',
    await byJose({ aud: `${audience}/` }),
    'audience',
    /spelled differently/,
  ],
  [
    'for this host in capitals',
    await byJose({ aud: audience.replace('receiver', 'Receiver') }),
    'audience',
    /spelled differently/,
  ],
  ['for this path in another case', await byJose({ aud: audience.toLowerCase() }), 'audience', /somebody else/],
  ['for another port', await byJose({ aud: audience.replace(':8443', '') }), 'audience', /somebody else/],
  ['for this endpoint with a query', await byJose({ aud: `${audience}?x=1` }), 'audience'],
  ['for this endpoint’s origin', await byJose({ aud: 'https://receiver.example:8443' }), 'audience'],

  // expiry
  ['that has just expired', await byJose({ iat: iat - 299, exp: iat + 1 }), 'expiry', /Expired 0 s ago/],
  ['that expired a second ago', await byJose({ iat: iat - 300, exp: iat }), 'expiry', /Expired 1 s ago/],
  ['that expired long ago', await byJose({ iat: 0, exp: 300 }), 'expiry', /found 1970-01-01T00:05:00/],
  ['that does not expire', await byJose({ exp: undefined }), 'expiry', /expected exp, in epoch seconds, found nothing/],
  ['whose expiry is null', withClaims({ exp: null }), 'expiry', /found null/],
  ['whose expiry is a text', withClaims({ exp: String(exp) }), 'expiry', /found "1795221901"/],
  ['whose expiry is a date', withClaims({ exp: '2099-01-01T00:00:00Z' }), 'expiry'],
  ['whose expiry is in milliseconds', withClaims({ exp: exp * 1000 }), 'expiry', /at most 300 s after iat/],
  ['whose expiry is beyond all calendars', withClaims({ exp: 1e300 }), 'expiry'],
  ['whose expiry is infinite', byHand(json(header), json(claims).replace(`${exp}`, '1e400')), 'expiry'],
  ['that lives for half a second too long', withClaims({ exp: exp + 0.5 }), 'expiry', /at most 300 s after iat/],
  ['that lives for an hour', await byJose({ exp: iat + 3600 }), 'expiry', /at most 300 s after iat/],
  ['that expires as it is made', withClaims({ iat: iat + 40, exp: iat + 40 }), 'expiry', /after iat/],
  ['that expires before it was made', withClaims({ iat: iat + 40, exp: iat + 20 }), 'expiry', /after iat/],

  // jti
  ['without jti', await byJose({ jti: undefined }), 'jti', /found nothing/],
  ['whose jti is a number', withClaims({ jti: 42 }), 'jti', /found 42/],
  ['whose jti is empty', await byJose({ jti: '' }), 'jti', /found ""/],
  [
    'whose jti is another event’s',
    await byJose({ jti: '0198a111-1111-7000-8000-00000000000b' }),
    'jti',
    /belongs to another body/,
  ],
  ['whose jti is the event’s in capitals', await byJose({ jti: jti.replaceAll('a', 'A') }), 'jti'],
  ['whose jti is a list', withClaims({ jti: [jti] }), 'jti'],

  // issued_at
  ['made in the future', await byJose({ iat: iat + 62, exp: iat + 300 }), 'issued_at', /created in the future/i],
  ['of no time', await byJose({ iat: undefined }), 'issued_at', /found nothing/],
  ['made at a text', withClaims({ iat: String(iat) }), 'issued_at'],
  ['not valid yet', await byJose({ nbf: iat + 120 }), 'issued_at', /found nbf 2026/],
  ['not valid before a text', withClaims({ nbf: 'tomorrow' }), 'issued_at', /found nbf "tomorrow"/],
  ['of no time, but valid from one', withClaims({ iat: undefined, nbf: iat }), 'issued_at', /found nothing/],
  ['made in the future, but valid already', withClaims({ iat: iat + 62, nbf: iat }), 'issued_at', /in the future/],
  ['not valid before the beginning of all calendars', withClaims({ nbf: -1e300 }), 'issued_at', /found nbf -1e\+300/],
  ['not valid before null', withClaims({ nbf: null }), 'issued_at', /found nbf null/],
]

/** A token with one claim more, of exactly so many characters. */
const tokenOfLength = (characters: number): string => {
  const least = Math.floor(((characters - withClaims({ x: '' }).length) * 3) / 4) - 1
  return [0, 1, 2, 3].map(more => withClaims({ x: 'x'.repeat(least + more) })).find(it => it.length === characters)!
}

const { alg, typ } = header
export const sound: [what: string, token: string][] = [
  ['as jose makes it', good],
  ['with its header in another order', byHand(json({ typ, kid, alg }), json(claims))],
  ['with its claims in another order', byHand(json(header), json({ exp, jti, iat, aud: audience, iss: issuer }))],
  ['with white space in its JSON', byHand(json(header, null, 2), json(claims, null, 2))],
  ['with slashes escaped, as PHP does', byHand(json(header), json(claims).replaceAll('/', '\\/'))],
  ['with claims that nobody asked for', await byJose({ sub: 'x', nbf: iat, scope: { iss: 'x', aud: ['iss', 'aud'] } })],
  [
    'with names in it that are there twice further in',
    byHand(json(header), json({ x: { jti: 'x' }, y: { jti: 'y', aud: ['z'] }, ...claims }, null, 1)),
  ],
  ['with a sub beyond ASCII', withClaims({ sub: 'Ereignis-ß-事件' })],
  ['with a number as sub', withClaims({ sub: 7 })],
  ['not valid for half a minute yet', withClaims({ nbf: iat + 30 })],
  ['not valid for a minute yet', withClaims({ nbf: iat + 61 })],
  ['without typ', await byJose({}, { typ: undefined })],
  ['of typ jwt', await byJose({}, { typ: 'jwt' })],
  ['of typ application/jwt', await byJose({}, { typ: 'application/jwt' })],
  ['by a key that shares its kid with one of another kind', await byJose({}, { kid: 'shared' })],
  ['made by a clock that is a minute ahead', await byJose({ iat: iat + 60, exp: iat + 300 })],
  ['in its last second', await byJose({ iat: iat - 298, exp: iat + 2 })],
  ['of 16 KiB', tokenOfLength(16_384)],
  ['with fractions of a second', withClaims({ iat: iat + 0.25, exp: iat + 300.25 })],
]

/** A token for another body, or with other claims. */
export const tokenFor = (bytes: string | Uint8Array, claimed: object = {}): string =>
  withClaims({ body_sha256: digestOf(bytes), ...claimed })

/** The token of another attempt of the same delivery, made that many seconds later. */
export const retryToken = (seconds: number): string => withClaims({ iat: iat + seconds, exp: exp + seconds })

/** A token whose kid is a number. */
export const numberedToken = withHeader({ kid: 1 })
