import assert from 'node:assert/strict'
import { execFile, spawnSync } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { createServer as createPlainServer } from 'node:http'
import { createServer } from 'node:https'
import type { AddressInfo, Server } from 'node:net'
import { join } from 'node:path'
import { after, test } from 'node:test'
import { promisify } from 'node:util'
import { everyNth } from '../support/size.ts'
import { temporaryFolder, tidings } from './tidings.ts'

// What a certificate can have wrong, shown by real servers whose certificates are made here.

const skip = spawnSync('openssl', ['version']).status === 0 ? false : 'openssl is not installed'
const home = temporaryFolder()
const at = (name: string) => join(home, name)
const openssl = (...args: string[]) => promisify(execFile)('openssl', args)

/** Makes a key and a certificate for these names: signed by itself, or by the authority, for so many days from now. */
const makeCertificate = async (name: string, { names = 'DNS:localhost', days = 30, authority = true }) => {
  const request = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes', '-keyout', at(`${name}.key`)]
  await openssl(
    'req',
    ...request,
    '-subj',
    `/CN=${name}`,
    '-addext',
    `subjectAltName=${names}`,
    '-out',
    at(`${name}.csr`),
  )
  const signer = authority
    ? ['-CA', at('authority.pem'), '-CAkey', at('authority.key'), '-CAcreateserial']
    : ['-signkey', at(`${name}.key`)]
  const out = ['-days', String(days), '-copy_extensions', 'copy', '-out', at(`${name}.pem`)]
  await openssl('x509', '-req', '-in', at(`${name}.csr`), ...signer, ...out)
}

const listening = async (server: Server): Promise<number> => {
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  after(() => server.close())
  return (server.address() as AddressInfo).port
}
const serve = (name: string) =>
  listening(
    createServer(
      { key: readFileSync(at(`${name}.key`)), cert: readFileSync(at(`${name}.pem`)) },
      (_request, response) => {
        response.setHeader('content-type', 'application/json')
        response.end('{"status":"ready"}')
      },
    ),
  )

if (!skip) {
  await openssl(
    ...['req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes', '-days', '30'],
    ...['-subj', '/O=House/CN=House CA', '-keyout', at('authority.key'), '-out', at('authority.pem')],
  )
}

/**
 * The check of both doctors that a server with this certificate
 * fails or passes; the operator's looks at it as an endpoint.
 */
const examine = async (port: number, env: Record<string, string> = {}) => {
  const checkOf = ({ stdout }: { stdout: string }, name: string) =>
    JSON.parse(stdout).checks.find((check: { name: string }) => check.name === name)
  const settings = {
    TIDINGS_DATABASE_URL: `sqlite:${at('none.sqlite')}`,
    TIDINGS_MASTER_KEY: randomBytes(32).toString('base64'),
    TIDINGS_PORT: '0',
    TIDINGS_BASE_URL: `https://localhost:${port}`,
    TIDINGS_ALLOW_NETWORKS: '127.0.0.0/8,::1/128',
  }
  const [client, server] = await Promise.all([
    tidings(['doctor'], { home, env: { TIDINGS_URL: `https://localhost:${port}`, ...env } }),
    tidings(['server', 'doctor', '--endpoint', `https://localhost:${port}/hooks`], {
      home,
      env: { ...settings, ...env },
    }),
  ])
  return [checkOf(client, 'connection'), checkOf(server, 'TLS'), checkOf(server, 'endpoint')]
}

for (const { fault, certificate, found, next } of everyNth(2, [
  {
    fault: 'has expired',
    certificate: { days: -1 },
    found: /certificate of localhost expired on \d{4}-\d\d-\d\d, 1 d ago/,
    next: /Renew it/,
  },
  {
    fault: 'is self-signed',
    certificate: { authority: false },
    found: /is self-signed/,
    next: /public authority/,
  },
  {
    fault: 'is for another name',
    certificate: { names: 'DNS:a.example,DNS:b.example' },
    found: /not for localhost, but for a\.example, b\.example/,
    next: /certificate made for this one/,
  },
  {
    fault: 'is of an authority that is not known',
    certificate: { authority: true },
    found: /signed by House, House CA, which is not known/,
    next: /full chain.*NODE_EXTRA_CA_CERTS/,
  },
])) {
  test(`both doctors say that a certificate ${fault}, and what to do`, { skip }, async () => {
    await makeCertificate('shown', certificate)
    const env = /not known/.test(fault) ? {} : { NODE_EXTRA_CA_CERTS: at('authority.pem') }
    for (const check of await examine(await serve('shown'), env)) {
      assert.equal(check.status, 'problem')
      assert.match(check.found, found)
      assert.match(check.next, next)
    }
  })
}

test('a good certificate is told with its end, and one that ends soon is a note', { skip }, async () => {
  const env = { NODE_EXTRA_CA_CERTS: at('authority.pem') }
  await makeCertificate('good', { days: 60 })
  for (const check of await examine(await serve('good'), env)) {
    assert.equal(check.status, 'ok', check.found)
    assert.match(check.found, /its certificate is valid until \d{4}-/)
  }
  await makeCertificate('ending', { days: 5 })
  for (const check of await examine(await serve('ending'), env)) assert.equal(check.status, 'note')
})

test('a port that does not speak TLS is told as such', { skip }, async () => {
  const [client, , endpoint] = await examine(await listening(createPlainServer()))
  for (const check of [client, endpoint]) assert.match(check.next, /does not speak TLS/)
})

test('a command that meets a bad certificate says so and leads to the doctor', { skip }, async () => {
  await makeCertificate('shown', {})
  const { code, stderr } = await tidings(['whoami'], {
    home,
    env: { TIDINGS_URL: `https://localhost:${await serve('shown')}`, TIDINGS_API_KEY: 'k', TIDINGS_API_SECRET: 'AAAA' },
  })
  assert.equal(code, 5)
  assert.match(stderr, /certificate is not accepted \(UNABLE_TO_VERIFY_LEAF_SIGNATURE\).*tidings doctor/s)
})

test('server doctor says that the network guard keeps an endpoint from being sent to, and what opens it', async () => {
  const { code, stdout } = await tidings(['server', 'doctor', '--endpoint', 'http://127.0.0.1:1/hooks'], {
    home,
    env: {
      TIDINGS_DATABASE_URL: `sqlite:${at('none.sqlite')}`,
      TIDINGS_MASTER_KEY: randomBytes(32).toString('base64'),
      TIDINGS_PORT: '0',
    },
  })
  assert.equal(code, 1)
  const check = JSON.parse(stdout).checks.find(({ name }: { name: string }) => name === 'endpoint')
  assert.match(check.found, /127\.0\.0\.1, to which the network guard does not send/)
  assert.match(check.next, /TIDINGS_ALLOW_NETWORKS=127\.0\.0\.1\/32/)
})

test('--ca-file and TIDINGS_CA_FILE name authorities to trust, which doctor tells', { skip }, async () => {
  await makeCertificate('own', {})
  const env = {
    TIDINGS_URL: `https://localhost:${await serve('own')}`,
    TIDINGS_API_KEY: 'k',
    TIDINGS_API_SECRET: 'c2VjcmV0',
  }
  assert.match((await tidings(['whoami'], { home, env })).stderr, /its certificate is not accepted/)
  for (const [line, more] of [
    [['--ca-file', at('authority.pem')], {}],
    [[], { TIDINGS_CA_FILE: at('authority.pem') }],
  ] as const) {
    const given = { home, env: { ...env, ...more } }
    assert.match((await tidings(['whoami', ...line], given)).stderr, /not as a Tidings server does/)
    const { checks } = JSON.parse((await tidings(['doctor', ...line], given)).stdout)
    const of = (name: string) => checks.find((check: { name: string }) => check.name === name)
    assert.equal(of('connection').status, 'ok')
    assert.match(of('authorities').found, /authority\.pem \(from (--ca-file|TIDINGS_CA_FILE)\)/)
  }
})
