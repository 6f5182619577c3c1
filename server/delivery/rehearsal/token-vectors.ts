import { CompactEncrypt, CompactSign, EncryptJWT, FlattenedSign, GeneralSign, UnsecuredJWT } from 'jose'
import type { CheckName } from '../../../shared/delivery-token.ts'
import { encode, type Mint, strayBits, strayCharacter } from './mint.ts'
import { ed448, ownKey, rsa, stranger } from './strangers.ts'

// Tokens as other libraries make them, most of them broken in one way each. docs/receivers/vectors.json is written from
// them, and a rehearsal sends them.

type Make = (mint: Mint) => string | Promise<string>

const json = JSON.stringify
/** For encryption that everybody can undo. */
const secret = new Uint8Array(32)
const initialisation = new Uint8Array(12)
const ORIGIN = /^[^/]*\/\/[^/]*/
const SCHEME = /^https?/
/** A character of base64url whose last bit is set, and an A after it. */
const ODD_THEN_A = /([BDFHJLNPRTVXZbdfhjlnprtvxz13579_])A/

/** What is no JSON (RFC 8259), though some parsers take it. */
const NO_JSON: [what: string, text: string][] = [
  ['NaN', 'NaN'],
  ['an escape that is none', '"\\x"'],
  ['an escape with a sign', '"\\u+041"'],
  ['a line end in a text', '"\n"'],
  ['a number that begins with 0', '01'],
  ['a number that ends with a full stop', '1.'],
  ['a comment', '/**/1'],
  ['a comma more', '[1,]'],
  ['a text in single quotes', "'x'"],
  ['a word in capitals', 'True'],
]

/** The case, the token, and the first check that fails. */
export const brokenTokens: [what: string, make: Make, check: CheckName][] = [
  // algorithm
  ['unsecured, as jose makes it', m => new UnsecuredJWT(m.claims).encode(), 'algorithm'],
  ['of algorithm none with a signature', m => m.withHeader({ alg: 'none' }), 'algorithm'],
  ['of algorithm nOnE', m => m.withHeader({ alg: 'nOnE' }).replace(/[^.]*$/, ''), 'algorithm'],
  ['of no algorithm', m => m.withHeader({ alg: undefined }), 'algorithm'],
  ['of two algorithms', m => m.withHeader({ alg: ['EdDSA', 'none'] }), 'algorithm'],
  ['of a list of the algorithm alone', m => m.withHeader({ alg: ['EdDSA'] }), 'algorithm'],
  ['of algorithm eddsa', m => m.withHeader({ alg: 'eddsa' }), 'algorithm'],
  ['of algorithm Ed25519', m => m.withHeader({ alg: 'Ed25519' }), 'algorithm'],
  ['by HS256 with the public key’s PEM as secret', m => m.byHmac(m.pem), 'algorithm'],
  ['by HS256 with the public key’s bytes as secret', m => m.byHmac(m.x), 'algorithm'],
  ['by HS256 with the empty secret', m => m.byHmac(''), 'algorithm'],
  ['by HS256 that says EdDSA', m => m.byHmac(m.x, { alg: 'EdDSA' }), 'signature'],
  ['by RS256', m => m.byJose({}, { alg: 'RS256', kid: 'rsa' }, rsa), 'algorithm'],
  ['by PS256', m => m.withHeader({ alg: 'PS256', kid: 'rsa' }), 'algorithm'],
  ['by ES256', m => m.withHeader({ alg: 'ES256', kid: 'p256' }), 'algorithm'],

  // key
  ['by Ed448', m => m.withHeader({ kid: 'ed448' }, ed448), 'key'],
  ['that names an RSA key', m => m.withHeader({ kid: 'rsa' }), 'key'],
  ['without kid', m => m.byJose({}, { kid: undefined }), 'key'],
  ['with an unknown kid', m => m.byJose({}, { kid: 'other' }, stranger), 'key'],
  ['with a number as kid', m => m.withHeader({ kid: 1 }), 'key'],
  ['with null as kid', m => m.withHeader({ kid: null }), 'key'],
  ['with a list as kid', m => m.withHeader({ kid: [m.kid] }), 'key'],
  ['with a kid in another case', m => m.withHeader({ kid: m.kid.toLowerCase() }), 'key'],
  ['with a path as kid', m => m.withHeader({ kid: '../../../../dev/null' }), 'key'],
  ['with SQL as kid', m => m.withHeader({ kid: "x' UNION SELECT 'AA" }), 'key'],
  ['with control characters in the kid', m => m.withHeader({ kid: '\u001b[2Jé\u202e' }), 'key'],
  ['with half a character as kid', m => m.withHeader({ kid: '\ud800' }), 'key'],
  ['with its own key as jwk', m => m.byJose({}, { kid: 'own', jwk: ownKey }, stranger), 'key'],

  // signature
  ['by another key of the same kid', m => m.byJose({}, {}, stranger), 'signature'],
  ['with its own key as jwk, of a kid that is known', m => m.byJose({}, { jwk: ownKey }, stranger), 'signature'],
  ['with a certificate as x5c', m => m.byJose({}, { x5c: ['MIIB'] }, stranger), 'signature'],
  [
    'with an address of keys as jku',
    m => m.byJose({}, { jku: 'https://evil.example/jwks.json' }, stranger),
    'signature',
  ],
  ['with an address of keys as x5u', m => m.byJose({}, { x5u: 'https://evil.example/x.pem' }, stranger), 'signature'],
  [
    'with other claims',
    m => `${m.goodHeader}.${encode(json({ ...m.claims, jti: 'x' }))}.${m.goodSignature}`,
    'signature',
  ],
  [
    'with another header',
    m => `${encode(json({ ...m.header, x: 1 }))}.${m.goodClaims}.${m.goodSignature}`,
    'signature',
  ],
  ['without its signature', m => `${m.goodHeader}.${m.goodClaims}.`, 'signature'],
  ['whose signature was cut', m => m.good.slice(0, -8), 'signature'],
  ['whose signature has more after it', m => `${m.good}AAAA`, 'signature'],
  ['whose signature has one bit flipped', m => m.bitFlipped(), 'signature'],
  ['whose signature is all zeros', m => `${m.goodHeader}.${m.goodClaims}.${encode(new Uint8Array(64))}`, 'signature'],
  ['whose signature is another number of the same rest', m => m.malleable(), 'signature'],
  ['whose signature has stray bits', m => m.lastCharacterChanged(), 'signature'],

  // format
  ['with a critical extension', m => m.withHeader({ crit: ['exp'] }), 'format'],
  ['with its claims not encoded (b64: false)', m => m.withHeader({ b64: false }), 'format'],
  ['with b64: true as critical extension, as jose makes it', m => m.byJose({}, { b64: true, crit: ['b64'] }), 'format'],
  ['of typ at+jwt', m => m.byJose({}, { typ: 'at+jwt' }), 'format'],
  ['of typ jwtx', m => m.withHeader({ typ: 'jwtx' }), 'format'],
  ['with a number as typ', m => m.withHeader({ typ: 7 }), 'format'],
  ['with null as typ', m => m.withHeader({ typ: null }), 'format'],
  [
    'encrypted with its claims',
    m =>
      new EncryptJWT(m.claims)
        .setProtectedHeader({ alg: 'dir', enc: 'A256GCM' })
        .setInitializationVector(initialisation)
        .encrypt(secret),
    'format',
  ],
  [
    'encrypted whole',
    m =>
      new CompactEncrypt(Buffer.from(m.good))
        .setProtectedHeader({ alg: 'dir', enc: 'A256GCM', cty: 'JWT' })
        .setInitializationVector(initialisation)
        .encrypt(secret),
    'format',
  ],
  [
    'signed twice, one within the other',
    m => new CompactSign(Buffer.from(m.good)).setProtectedHeader({ ...m.header, cty: 'JWT' }).sign(m.key),
    'format',
  ],
  [
    'in flattened JSON',
    async m => json(await new FlattenedSign(Buffer.from(json(m.claims))).setProtectedHeader(m.header).sign(m.key)),
    'format',
  ],
  [
    'in general JSON',
    async m =>
      json(await new GeneralSign(Buffer.from(json(m.claims))).addSignature(m.key).setProtectedHeader(m.header).sign()),
    'format',
  ],
  ['with alg twice', m => m.byHand(`{"alg":"none",${json(m.header).slice(1)}`, json(m.claims)), 'format'],
  ['with aud twice', m => m.byHand(json(m.header), `{"aud":"https://x.example",${json(m.claims).slice(1)}`), 'format'],
  [
    'with jti twice, once escaped',
    m => m.byHand(json(m.header), `{"\\u006ati":"x",${json(m.claims).slice(1)}`),
    'format',
  ],
  ['with its claims detached', m => `${m.goodHeader}..${m.goodSignature}`, 'format'],
  ['padded', m => `${m.goodHeader}.${m.goodClaims}.${m.goodSignature}==`, 'format'],
  ['with padding in the middle', m => `${m.goodHeader}=.${m.goodClaims}.${m.goodSignature}`, 'format'],
  [
    'with stray bits at its header’s end, signed so',
    m => m.signedAs(strayBits(encode(json(m.header))), m.goodClaims),
    'format',
  ],
  ['with stray bits at its claims’ end, signed so', m => m.signedAs(m.goodHeader, strayBits(m.goodClaims)), 'format'],
  [
    'with a stray character after its claims, signed so',
    m => m.signedAs(m.goodHeader, strayCharacter(m.goodClaims)),
    'format',
  ],
  [
    'with a stray star in its claims, signed so',
    m => m.signedAs(m.goodHeader, `${m.goodClaims.slice(0, 8)}*${m.goodClaims.slice(8)}`),
    'format',
  ],
  [
    'with a stray star for an A in its claims, signed so',
    m => m.signedAs(m.goodHeader, m.goodClaims.replace(ODD_THEN_A, '$1*')),
    'format',
  ],
  [
    'with a stray + and / in its claims, signed so',
    m => m.signedAs(m.goodHeader, m.varied.replaceAll('-', '+').replaceAll('_', '/')),
    'format',
  ],
  ['in four parts, signed so', m => m.signedAs(m.good.slice(0, m.good.lastIndexOf('.')), 'AA'), 'format'],
  [
    'with its header padded, signed so',
    m => m.signedAs(`${m.goodHeader}${'='.repeat(-m.goodHeader.length & 3)}=`, m.goodClaims),
    'format',
  ],
  ['in base64 with + and /', m => `${m.goodHeader}.${m.goodClaims}.${'+/'.repeat(43)}`, 'format'],
  ['with a full stop after it', m => `${m.good}.`, 'format'],
  ['with a full stop before it', m => `.${m.good}`, 'format'],
  ['in two parts', m => `${m.goodHeader}.${m.goodClaims}`, 'format'],
  ['with a space in it', m => m.good.replace('.', ' .'), 'format'],
  ['with a tab in it', m => m.good.replace('.', '.\t'), 'format'],
  ['with another after it', m => `${m.good}, Bearer ${m.good}`, 'format'],
  ['of one word', () => 'token', 'format'],
  ['of nothing but full stops', () => '..', 'format'],
  ['in other letters', m => m.good.replace('.', '．'), 'format'],
  ['of a length that no token has', m => m.withClaims({ x: 'x'.repeat(20_000) }), 'format'],
  ['whose header is a list', m => m.byHand(json([m.header]), json(m.claims)), 'format'],
  ['whose claims are a text', m => m.byHand(json(m.header), '"claims"'), 'format'],
  ['whose claims are null', m => m.byHand(json(m.header), 'null'), 'format'],
  ['whose claims are no JSON', m => m.byHand(json(m.header), '{iss:1}'), 'format'],
  ...NO_JSON.map(([what, text]): (typeof brokenTokens)[number] => [
    `whose claims have ${what} in them`,
    m => m.byHand(json(m.header), `{"x":${text},${json(m.claims).slice(1)}`),
    'format',
  ]),
  ['whose claims have more after them', m => m.byHand(json(m.header), `${json(m.claims)}{}`), 'format'],
  ['whose claims begin with a byte order mark', m => m.byHand(json(m.header), `\uFEFF${json(m.claims)}`), 'format'],
  ['whose claims are no UTF-8', m => m.byHand(json(m.header), new Uint8Array([0x7b, 0xff, 0x7d])), 'format'],
  ['whose claims are UTF-16', m => m.byHand(json(m.header), Buffer.from(json(m.claims), 'utf16le')), 'format'],

  // issuer
  ['of another issuer', m => m.byJose({ iss: 'https://evil.example' }), 'issuer'],
  ['of an issuer with a slash at its end', m => m.byJose({ iss: `${m.issuer}/` }), 'issuer'],
  ['of an issuer in capitals', m => m.byJose({ iss: m.issuer.toUpperCase() }), 'issuer'],
  [
    'of the issuer without TLS',
    m => m.byJose({ iss: m.issuer.replace(SCHEME, it => (it === 'http' ? 'https' : 'http')) }),
    'issuer',
  ],
  ['of the issuer in a list', m => m.withClaims({ iss: [m.issuer] }), 'issuer'],
  ['of no issuer', m => m.byJose({ iss: undefined }), 'issuer'],
  ['of an issuer that begins as ours', m => m.byJose({ iss: `${m.issuer}.evil.example` }), 'issuer'],

  // audience
  ['for another endpoint', m => m.byJose({ aud: 'https://other.example/hooks' }), 'audience'],
  ['for several endpoints', m => m.byJose({ aud: [m.audience, 'https://other.example/hooks'] }), 'audience'],
  ['for a list of this endpoint alone', m => m.byJose({ aud: [m.audience] }), 'audience'],
  ['for no endpoint', m => m.byJose({ aud: undefined }), 'audience'],
  ['for an empty text', m => m.byJose({ aud: '' }), 'audience'],
  ['for an empty list', m => m.byJose({ aud: [] }), 'audience'],
  ['for this endpoint with a slash at its end', m => m.byJose({ aud: `${m.audience}/` }), 'audience'],
  ['for this host in capitals', m => m.byJose({ aud: m.audience.replace(ORIGIN, it => it.toUpperCase()) }), 'audience'],
  ['for this path in another case', m => m.byJose({ aud: m.pathInAnotherCase() }), 'audience'],
  ['for another port', m => m.byJose({ aud: m.onAnotherPort() }), 'audience'],
  ['for this endpoint with a query', m => m.byJose({ aud: `${m.audience}?x=1` }), 'audience'],
  ['for this endpoint’s origin', m => m.byJose({ aud: new URL(m.audience).origin }), 'audience'],

  // expiry
  ['that has just expired', m => m.byJose({ iat: m.iat - 299, exp: m.iat + 1 }), 'expiry'],
  ['that expired a second ago', m => m.byJose({ iat: m.iat - 300, exp: m.iat }), 'expiry'],
  ['that expired long ago', m => m.byJose({ iat: 0, exp: 300 }), 'expiry'],
  ['that does not expire', m => m.byJose({ exp: undefined }), 'expiry'],
  ['whose expiry is null', m => m.withClaims({ exp: null }), 'expiry'],
  ['whose expiry is a text', m => m.withClaims({ exp: String(m.exp) }), 'expiry'],
  ['whose expiry is a date', m => m.withClaims({ exp: '2099-01-01T00:00:00Z' }), 'expiry'],
  ['whose expiry is in milliseconds', m => m.withClaims({ exp: m.exp * 1000 }), 'expiry'],
  ['whose expiry is beyond all calendars', m => m.withClaims({ exp: 1e300 }), 'expiry'],
  ['whose expiry is infinite', m => m.byHand(json(m.header), json(m.claims).replace(`${m.exp}`, '1e400')), 'expiry'],
  ['that lives for half a second too long', m => m.withClaims({ exp: m.exp + 0.5 }), 'expiry'],
  ['that lives for an hour', m => m.byJose({ exp: m.iat + 3600 }), 'expiry'],
  ['that expires as it is made', m => m.withClaims({ iat: m.iat + 40, exp: m.iat + 40 }), 'expiry'],
  ['that expires before it was made', m => m.withClaims({ iat: m.iat + 40, exp: m.iat + 20 }), 'expiry'],

  // jti
  ['without jti', m => m.byJose({ jti: undefined }), 'jti'],
  ['whose jti is a number', m => m.withClaims({ jti: 42 }), 'jti'],
  ['whose jti is empty', m => m.byJose({ jti: '' }), 'jti'],
  ['whose jti is another event’s', m => m.byJose({ jti: '0198a111-1111-7000-8000-00000000000b' }), 'jti'],
  ['whose jti is the event’s in capitals', m => m.byJose({ jti: m.jti.toUpperCase() }), 'jti'],
  ['whose jti is a list', m => m.withClaims({ jti: [m.jti] }), 'jti'],

  // issued_at
  ['made in the future', m => m.byJose({ iat: m.iat + 62, exp: m.iat + 300 }), 'issued_at'],
  ['of no time', m => m.byJose({ iat: undefined }), 'issued_at'],
  ['made at a text', m => m.withClaims({ iat: String(m.iat) }), 'issued_at'],
  ['not valid yet', m => m.byJose({ nbf: m.iat + 120 }), 'issued_at'],
  ['not valid before a text', m => m.withClaims({ nbf: 'tomorrow' }), 'issued_at'],
  ['of no time, but valid from one', m => m.withClaims({ iat: undefined, nbf: m.iat }), 'issued_at'],
  ['made in the future, but valid already', m => m.withClaims({ iat: m.iat + 62, nbf: m.iat }), 'issued_at'],
  [
    'not valid before a second before the beginning of all calendars',
    m => m.withClaims({ nbf: -8.64e12 - 1 }),
    'issued_at',
  ],
  ['not valid before null', m => m.withClaims({ nbf: null }), 'issued_at'],
]

/** The case, and a token that must be taken. */
export const soundTokens: [what: string, make: Make][] = [
  ['as jose makes it', m => m.good],
  [
    'with its header in another order',
    m => m.byHand(json({ typ: m.header.typ, kid: m.header.kid, alg: m.header.alg }), json(m.claims)),
  ],
  [
    'with its claims in another order',
    m => m.byHand(json(m.header), json({ exp: m.exp, jti: m.jti, iat: m.iat, aud: m.audience, iss: m.issuer })),
  ],
  ['with white space in its JSON', m => m.byHand(json(m.header, null, 2), json(m.claims, null, 2))],
  ['with slashes escaped, as PHP does', m => m.byHand(json(m.header), json(m.claims).replaceAll('/', '\\/'))],
  [
    'with claims that nobody asked for',
    m => m.byJose({ sub: 'x', nbf: m.iat, scope: { iss: 'x', aud: ['iss', 'aud'] } }),
  ],
  [
    'with names in it that are there twice further in',
    m => m.byHand(json(m.header), json({ x: { jti: 'x' }, y: { jti: 'y', aud: ['z'] }, ...m.claims }, null, 1)),
  ],
  ['with a sub beyond ASCII', m => m.withClaims({ sub: 'Ereignis-ß-事件' })],
  ['with a number as sub', m => m.withClaims({ sub: 7 })],
  ['not valid for half a minute yet', m => m.withClaims({ nbf: m.iat + 30 })],
  ['not valid before the beginning of all calendars', m => m.withClaims({ nbf: -8.64e12 })],
  ['not valid for a minute yet', m => m.withClaims({ nbf: m.iat + 61 })],
  ['without typ', m => m.byJose({}, { typ: undefined })],
  ['of typ jwt', m => m.byJose({}, { typ: 'jwt' })],
  ['of typ application/jwt', m => m.byJose({}, { typ: 'application/jwt' })],
  ['by a key that shares its kid with one of another kind', m => m.byJose({}, { kid: 'shared' })],
  ['made by a clock that is a minute ahead', m => m.byJose({ iat: m.iat + 60, exp: m.iat + 300 })],
  ['in its last second', m => m.byJose({ iat: m.iat - 298, exp: m.iat + 2 })],
  ['of 16 KiB', m => m.tokenOfLength(16_384)],
  ['with fractions of a second', m => m.withClaims({ iat: m.iat + 0.25, exp: m.iat + 300.25 })],
]
