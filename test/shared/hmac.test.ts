import assert from 'node:assert/strict'
import { createHash, createHmac } from 'node:crypto'
import { describe, it } from 'node:test'
import {
  bodyHash,
  checkSignedHeaders,
  parseAuthorization,
  parseRequestDate,
  signature,
  signaturesMatch,
  signRequest,
  stringToSign,
} from '../../shared/hmac.ts'
import { parseHttpDate } from '../../shared/http-date.ts'
import { leastCpuMsOf } from '../support/effort.ts'

const credentials = { apiKey: 'key-1', apiSecret: Buffer.alloc(32, 7).toString('base64') }
const at = new Date('2026-11-21T00:40:01.999Z')
const url = new URL('https://tidings.example:8443/graphql?trace=a%20b')
const EMPTY_HASH = '47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='

/** What the server does with a request, short of looking up the key. */
const served = (method: string, pathAndQuery: string, headers: Record<string, string>, secret: string): boolean => {
  const authorization = parseAuthorization(headers.authorization!)
  if ('fault' in authorization) throw new Error(authorization.fault)
  const checked = checkSignedHeaders(authorization.signedHeaders, headers)
  if ('fault' in checked) throw new Error(checked.fault)
  const text = stringToSign({ method, pathAndQuery, signedValues: checked.signedValues })
  return signaturesMatch(signature(secret, text), authorization.signature)
}

describe('signing a request', () => {
  it('gives the signature that node:crypto gives over the text the scheme prescribes', () => {
    const names = 'host;x-date;x-content-sha256;x-nonce'
    const headers = signRequest({ method: 'post', url, body: '{"query":"é"}', credentials, at, nonce: 'n-1' })

    const hash = createHash('sha256').update(Buffer.from('{"query":"é"}', 'utf8')).digest('base64')
    const text = `POST\n/graphql?trace=a%20b\ntidings.example:8443;Sat, 21 Nov 2026 00:40:01 GMT;${hash};n-1`
    const expected = createHmac('sha256', Buffer.alloc(32, 7)).update(text).digest('base64')
    assert.deepEqual(headers, {
      host: 'tidings.example:8443',
      'x-date': 'Sat, 21 Nov 2026 00:40:01 GMT',
      'x-content-sha256': hash,
      'x-nonce': 'n-1',
      authorization: `HMAC-SHA256 Credential=key-1&SignedHeaders=${names}&Signature=${expected}`,
    })
  })

  it('agrees with RFC 4231 test case 2 on HMAC-SHA256', () => {
    const mac = '5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843'
    const secret = Buffer.from('Jefe').toString('base64')
    assert.equal(signature(secret, 'what do ya want for nothing?'), Buffer.from(mac, 'hex').toString('base64'))
  })

  it('gives the hash of an empty body that Azure documents', () => {
    assert.equal(bodyHash(''), EMPTY_HASH)
  })

  it('hashes bytes as they are', () => {
    assert.equal(bodyHash(Buffer.from([0xff, 0x00])), createHash('sha256').update('ff00', 'hex').digest('base64'))
  })

  it('leaves out the default port, as clients do in the Host header', () => {
    const { host } = signRequest({
      method: 'GET',
      url: new URL('https://tidings.example:443/'),
      body: '',
      credentials,
      at,
    })
    assert.equal(host, 'tidings.example')
  })

  it('makes two like requests differ by a nonce', () => {
    const [a, b] = ['1', '2'].map(nonce => signRequest({ method: 'POST', url, body: '', credentials, at, nonce }))
    assert.notEqual(a!.authorization, b!.authorization)
  })

  it('refuses a secret that is not base64, without repeating it', () => {
    const wrong = { apiKey: 'key-1', apiSecret: 'not base64!' }
    assert.throws(
      () => signRequest({ method: 'GET', url, body: '', credentials: wrong, at }),
      (error: Error & { code?: string }) =>
        error.code === 'INVALID_API_SECRET' && !error.message.includes('not base64!'),
    )
  })
})

describe('a signed request', () => {
  const headers = signRequest({ method: 'POST', url, body: '{}', credentials, at })

  it('is served', () => {
    assert.equal(served('POST', '/graphql?trace=a%20b', headers, credentials.apiSecret), true)
  })

  const changes: [string, Parameters<typeof served>][] = [
    ['method', ['PUT', '/graphql?trace=a%20b', headers, credentials.apiSecret]],
    ['query', ['POST', '/graphql', headers, credentials.apiSecret]],
    ['host', ['POST', '/graphql?trace=a%20b', { ...headers, host: 'other.example' }, credentials.apiSecret]],
    [
      'body hash',
      ['POST', '/graphql?trace=a%20b', { ...headers, 'x-content-sha256': EMPTY_HASH }, credentials.apiSecret],
    ],
    ['secret', ['POST', '/graphql?trace=a%20b', headers, Buffer.alloc(32, 8).toString('base64')]],
  ]
  for (const [what, request] of changes) {
    it(`is not served with another ${what}`, () => assert.equal(served(...request), false))
  }
})

describe('a client made for Azure App Configuration', () => {
  const secret = credentials.apiSecret
  const mac = (text: string) => createHmac('sha256', Buffer.from(secret, 'base64')).update(text).digest('base64')
  const date = 'Fri, 11 May 2018 18:48:36 GMT'
  const host = 'example.azconfig.io'
  const hash = { 'x-ms-content-sha256': EMPTY_HASH }
  const target = '/kv?fields=*&api-version=1.0'

  it('is served when it signs as the JavaScript client does', () => {
    const authorization =
      'HMAC-SHA256 Credential=id&SignedHeaders=x-ms-date;host;x-ms-content-sha256&' +
      `Signature=${mac(`GET\n${target}\n${date};${host};${EMPTY_HASH}`)}`
    assert.equal(served('GET', target, { host, 'x-ms-date': date, ...hash, authorization }, secret), true)
  })

  it('is served when it signs the Date header, as the .NET client does', () => {
    const authorization =
      'HMAC-SHA256 Credential=id&SignedHeaders=date;host;x-ms-content-sha256&' +
      `Signature=${mac(`GET\n${target}\n${date};${host};${EMPTY_HASH}`)}`
    assert.equal(served('GET', target, { host, date, ...hash, authorization }, secret), true)
  })

  it('is served when it names headers in mixed case, as the Java client does', () => {
    const authorization =
      'HMAC-SHA256 Credential=id&SignedHeaders=Host;Date;x-ms-content-sha256&' +
      `Signature=${mac(`GET\n${target}\n${host};${date};${EMPTY_HASH}`)}`
    assert.equal(served('GET', target, { host, date, ...hash, authorization }, secret), true)
  })

  it('is served when it separates parameters by comma and blank, as the Go sample does', () => {
    const authorization =
      'HMAC-SHA256 Credential=id, SignedHeaders=x-ms-date;host;x-ms-content-sha256, ' +
      `Signature=${mac(`GET\n${target}\n${date};${host};${EMPTY_HASH}`)}`
    assert.equal(served('GET', target, { host, 'x-ms-date': date, ...hash, authorization }, secret), true)
  })

  it('has the example in its documentation understood', () => {
    const example =
      'HMAC-SHA256 ' +
      'Credential=a4016f0fa8fb0ef2&SignedHeaders=Host;x-ms-date;x-ms-content-sha256&' +
      'Signature=jMXmttaxBJ0NmLlFKLZUkI8jdFu/8yqcTYzbkI3DGdU='
    assert.deepEqual(parseAuthorization(example), {
      credential: 'a4016f0fa8fb0ef2',
      signedHeaders: ['host', 'x-ms-date', 'x-ms-content-sha256'],
      signature: 'jMXmttaxBJ0NmLlFKLZUkI8jdFu/8yqcTYzbkI3DGdU=',
    })
  })
})

describe('an Authorization header', () => {
  const faults: [string, string, RegExp][] = [
    ['with another scheme', 'Bearer abc', /must be HMAC-SHA256/],
    ['that is empty', '', /must be HMAC-SHA256/],
    ['with a scheme that only begins alike', 'HMAC-SHA2567 Credential=a', /must be HMAC-SHA256/],
    ['without parameters', 'HMAC-SHA256', /empty/],
    [
      'without Credential, as Communication Services’ clients send',
      'HMAC-SHA256 SignedHeaders=x-ms-date;host;x-ms-content-sha256&Signature=c2ln',
      /Credential missing/,
    ],
    ['without two of them', 'HMAC-SHA256 Credential=a', /SignedHeaders and Signature missing/],
    ['with an empty Credential', 'HMAC-SHA256 Credential=&SignedHeaders=host&Signature=c2ln', /Credential is empty/],
    ['with an empty Signature', 'HMAC-SHA256 Credential=a&SignedHeaders=host&Signature=', /Signature is empty/],
    [
      'with a parameter given twice',
      'HMAC-SHA256 Credential=a&credential=b&SignedHeaders=host&Signature=c2ln',
      /Credential is given twice/,
    ],
    [
      'with an unknown parameter',
      'HMAC-SHA256 Credential=a&Realm=x&SignedHeaders=host&Signature=c2ln',
      /"Realm=x" is not a parameter/,
    ],
    [
      'with a parameter without "="',
      'HMAC-SHA256 Credential&SignedHeaders=host&Signature=c2ln',
      /"Credential" is not a parameter/,
    ],
    [
      'with nothing between two separators',
      'HMAC-SHA256 Credential=a&&SignedHeaders=host&Signature=c2ln',
      /A parameter is empty/,
    ],
    [
      'with a blank among the header names',
      'HMAC-SHA256 Credential=a&SignedHeaders=host; date&Signature=c2ln',
      /SignedHeaders has " date"/,
    ],
    [
      'with an empty header name',
      'HMAC-SHA256 Credential=a&SignedHeaders=host;;date&Signature=c2ln',
      /SignedHeaders has ""/,
    ],
    [
      'with a header name twice',
      'HMAC-SHA256 Credential=a&SignedHeaders=host;Host&Signature=c2ln',
      /names "host" twice/,
    ],
  ]
  for (const [what, header, message] of faults) {
    it(`${what} is malformed, and says what would be right`, () => {
      const parsed = parseAuthorization(header)
      assert.match('fault' in parsed ? parsed.fault : 'no fault', message)
    })
  }

  it('of the most names that fit into a header is read in proportion to them', async () => {
    const costOf = (count: number) => {
      const names = Array.from({ length: count }, (_, n) => (n + 36 ** 2).toString(36)).join(';')
      const header = `HMAC-SHA256 Credential=a&SignedHeaders=${names}&Signature=c2ln`
      return leastCpuMsOf(() => {
        for (let n = 0; n < 60; n++) assert.ok('signature' in parseAuthorization(header))
      })
    }
    await costOf(1_000)
    const [few, many] = [await costOf(1_000), await costOf(4_000)]
    assert.ok(many < 8 * few, `${many} ms against ${few} ms`)
  })

  it('may spell the scheme in any case', () => {
    assert.equal('fault' in parseAuthorization('hmac-sha256 Credential=a&SignedHeaders=host&Signature=c2ln'), false)
  })

  it('keeps the "=" that ends a base64 signature', () => {
    const parsed = parseAuthorization('HMAC-SHA256 Credential=a&SignedHeaders=host&Signature=YQ==')
    assert.equal('signature' in parsed && parsed.signature, 'YQ==')
  })
})

describe('the signed headers', () => {
  const all = { host: 'h', 'x-date': 'd', 'x-content-sha256': 'b' }

  it('give their values in the order in which they were signed', () => {
    assert.deepEqual(checkSignedHeaders(['x-content-sha256', 'host', 'x-date'], all), {
      dateHeader: 'x-date',
      hashHeader: 'x-content-sha256',
      signedValues: ['b', 'h', 'd'],
    })
  })

  const faults: [string, string[], Record<string, string>, RegExp][] = [
    ['without host', ['x-date', 'x-content-sha256'], all, /must include host/],
    ['without the date', ['host', 'x-content-sha256'], all, /must include x-date/],
    ['without the body hash', ['host', 'x-date'], all, /must include x-content-sha256/],
    ['with a header that was not sent', ['host', 'x-date', 'x-content-sha256', 'x-nonce'], all, /no such header/],
    ['with what every object has', ['host', 'x-date', 'x-content-sha256', 'constructor'], all, /no such header/],
    ['of a request without date', ['host', 'x-content-sha256'], { host: 'h', 'x-content-sha256': 'b' }, /has no date/],
    ['of a request without body hash', ['host', 'date'], { host: 'h', date: 'd' }, /has no body hash/],
    [
      'with x-ms-date, where an unsigned x-date counts before it',
      ['host', 'x-ms-date', 'x-content-sha256'],
      { ...all, 'x-ms-date': 'd' },
      /must include x-date/,
    ],
    [
      'with date, where an unsigned x-ms-date counts before it',
      ['host', 'date', 'x-ms-content-sha256'],
      { host: 'h', date: 'd', 'x-ms-date': 'd', 'x-ms-content-sha256': 'b' },
      /must include x-ms-date/,
    ],
    [
      'with x-ms-content-sha256, where an unsigned x-content-sha256 counts before it',
      ['host', 'x-date', 'x-ms-content-sha256'],
      { ...all, 'x-ms-content-sha256': 'b' },
      /must include x-content-sha256/,
    ],
  ]
  for (const [what, signedHeaders, headers, message] of faults) {
    it(`${what} are refused`, () => {
      const checked = checkSignedHeaders(signedHeaders, headers)
      assert.match('fault' in checked ? checked.fault : 'no fault', message)
    })
  }
})

describe('signatures', () => {
  it('match only as the same text, not as another spelling of the same bytes', () => {
    assert.equal(signaturesMatch('YQ==', 'YQ=='), true)
    assert.equal(signaturesMatch('YQ==', 'YR=='), false)
    assert.equal(signaturesMatch('YQ==', 'YQ='), false)
    assert.equal(signaturesMatch('', 'YQ=='), false)
  })
})

describe('a request’s date', () => {
  const expected = Date.parse('1994-11-06T08:49:37Z')
  const readable: [string, string, number][] = [
    ['IMF-fixdate', 'Sun, 06 Nov 1994 08:49:37 GMT', expected],
    ['RFC 850', 'Sunday, 06-Nov-94 08:49:37 GMT', expected],
    ['asctime', 'Sun Nov  6 08:49:37 1994', expected],
    ['ISO 8601 in UTC', '1994-11-06T08:49:37Z', expected],
    ['ISO 8601 with offset and fraction', '1994-11-06T09:49:37.250+01:00', expected + 250],
    ['App Configuration’s Python client', 'Nov, 06 1994 08:49:37.123456 GMT', expected],
  ]
  for (const [form, text, ms] of readable) {
    it(`is read as ${form}`, () => assert.equal(parseRequestDate(text), ms))
  }

  const unreadable = [
    '',
    'now',
    'Sun, 06 Nov 1994 08:49:37 CET',
    'Sun, 31 Feb 1994 08:49:37 GMT',
    'Sun, 06 Nov 1994 24:00:00 GMT',
    'Sun, 00 Nov 1994 08:49:37 GMT',
    'sun, 06 nov 1994 08:49:37 gmt',
    'Sun, 06 Nov 1994 08:49:37 GMT and more',
    '1994-11-06 08:49:37',
  ]
  for (const text of unreadable) {
    it(`is not read from ${JSON.stringify(text)}`, () => assert.equal(parseRequestDate(text), undefined))
  }

  it('with a two-digit year lies at most 50 years ahead', () => {
    const nowMs = Date.parse('2026-11-21T00:00:00Z')
    assert.equal(parseHttpDate('Sunday, 06-Nov-76 08:49:37 GMT', nowMs), Date.parse('2076-11-06T08:49:37Z'))
    assert.equal(parseHttpDate('Sunday, 06-Nov-77 08:49:37 GMT', nowMs), Date.parse('1977-11-06T08:49:37Z'))
  })
})
