import assert from 'node:assert/strict'
import { createServer } from 'node:http'
import { type AddressInfo, connect } from 'node:net'
import { after, test } from 'node:test'
import { difference } from '../../cli/connection/server-version.ts'
import { connectedTo, startStubServer } from './stub-server.ts'
import { temporaryFolder, tidings } from './tidings.ts'

// How the command line reaches a server: by proxies, and what it says of them.

const home = temporaryFolder()
const viewer = { id: 'v', name: 'ci', apiKey: 'k', permissions: ['read'], seesAllOrganisations: true, expiresAt: null }
const server = await startStubServer(() => ({ data: { viewer } }))

const startProxy = async () => {
  const asked: string[] = []
  const proxy = createServer()
  proxy.on('connect', (request, socket) => {
    asked.push(request.url!)
    const [host = '', port] = request.url!.split(':')
    const upstream = connect(Number(port), host, () => {
      socket.write('HTTP/1.1 200 Connection Established\r\n\r\n')
      socket.pipe(upstream).pipe(socket)
    })
    upstream.on('error', () => socket.destroy())
    socket.on('error', () => upstream.destroy())
  })
  await new Promise<void>(resolve => proxy.listen(0, '127.0.0.1', resolve))
  after(() => proxy.close())
  return { url: `http://user:hunter2@127.0.0.1:${(proxy.address() as AddressInfo).port}`, asked }
}
const proxy = await startProxy()
const env = connectedTo(server)

for (const name of ['HTTP_PROXY', 'http_proxy', 'ALL_PROXY']) {
  test(`${name} is the way to a server with http`, async () => {
    proxy.asked.length = 0
    const { code, stderr } = await tidings(['whoami'], { home, env: { ...env, [name]: proxy.url } })
    assert.equal(code, 0, stderr)
    assert.deepEqual([...new Set(proxy.asked)], [new URL(server.url).host])
  })
}

test('NO_PROXY names what is reached without', async () => {
  proxy.asked.length = 0
  const { code } = await tidings(['whoami'], { home, env: { ...env, HTTP_PROXY: proxy.url, NO_PROXY: '127.0.0.1' } })
  assert.equal(code, 0)
  assert.deepEqual(proxy.asked, [])
})

test('a proxy that is not there is named, without its password, with how to do without', async () => {
  const gone = { ...env, HTTP_PROXY: 'http://user:hunter2@127.0.0.1:1' }
  const { code, stderr } = await tidings(['whoami'], { home, env: gone })
  assert.equal(code, 5)
  assert.match(stderr, /was not reached by way of proxy http:\/\/127\.0\.0\.1:1 \(from HTTP_PROXY\)/)
  assert.match(stderr, /NO_PROXY=127\.0\.0\.1/)
  assert.doesNotMatch(stderr, /hunter2/)
})

test('the doctor says which proxy is used, and by which variable', async () => {
  const { stdout } = await tidings(['doctor'], { home, env: { ...env, HTTP_PROXY: proxy.url } })
  const connection = JSON.parse(stdout).checks.find((check: { name: string }) => check.name === 'connection')
  assert.match(connection.found, /^by the proxy http:\/\/127\.0\.0\.1:\d+ \(from HTTP_PROXY\): .* takes connections/)
  assert.doesNotMatch(stdout, /hunter2/)
})

test('a file of authorities that holds none is wrong usage', async () => {
  for (const [line, given] of [
    [['whoami', '--ca-file', '/dev/null'], {}],
    [['whoami'], { TIDINGS_CA_FILE: '/dev/null' }],
  ] as const) {
    const { code, stderr } = await tidings([...line], { home, env: { ...env, ...given } })
    assert.equal(code, 2)
    assert.match(stderr, /The file that (--ca-file|TIDINGS_CA_FILE) names holds no certificate\./)
  }
})

test('versions differ in a way that matters where the first number does, or the second before 1.0.0', () => {
  for (const [one, other, matters] of [
    ['0.1.0', '0.1.9', false],
    ['0.1.0', '0.2.0', true],
    ['1.2.0', '1.10.0', false],
    ['1.9.0', '2.0.0', true],
  ] as const) {
    assert.equal(difference(one, other) !== undefined, matters, `${one} ${other}`)
  }
  assert.equal(difference(undefined, '1.0.0'), undefined)
  assert.match(difference('0.10.0', '0.9.0')!, /this command line may not know/)
  assert.match(difference('0.9.0', '0.10.0')!, /the server may not know/)
})
