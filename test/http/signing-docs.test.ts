import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { createServer, request } from 'node:http'
import type { AddressInfo } from 'node:net'
import { after, before, describe, it } from 'node:test'
import { promisify } from 'node:util'
import { startTestServer, type TestServer } from '../support/server.ts'

const page = readFileSync(new URL('../../docs/signing.md', import.meta.url), 'utf8')
const blockOf = (language: string): string => new RegExp(`\`\`\`${language}\n(.*?)\`\`\``, 's').exec(page)![1]!

const commands: Record<string, [string, string[]]> = {
  js: [process.execPath, ['--input-type=module', '--eval']],
  python: ['python3', ['-c']],
}

describe('docs/signing.md', () => {
  let server: TestServer
  before(async () => {
    server = await startTestServer('sqlite', { env: { TIDINGS_ROLES: 'api' } })
  })
  after(() => server.stop())

  /** A way to the server that loses the answer to the first request, and passes the host on that was signed. */
  const losingFirst = async () => {
    const keys: unknown[] = []
    const way = createServer((incoming, outgoing) => {
      keys.push(incoming.headers['idempotency-key'])
      const isLost = keys.length === 1
      const passed = request(
        new URL(incoming.url!, server.url),
        { method: incoming.method!, headers: incoming.headers },
        answer => {
          if (isLost) answer.resume().on('end', () => incoming.socket.resetAndDestroy())
          else answer.pipe(outgoing.writeHead(answer.statusCode!, answer.headers))
        },
      )
      incoming.pipe(passed)
    })
    await new Promise<void>(resolve => way.listen(0, '127.0.0.1', resolve))
    return { way, keys, url: `http://127.0.0.1:${(way.address() as AddressInfo).port}` }
  }

  for (const [language, [command, args]] of Object.entries(commands)) {
    it(`has an example in ${language} that is done once although its connection breaks`, async () => {
      const { apiKey, apiSecret } = await server.token()
      const { way, keys, url } = await losingFirst()
      const before = await server.database.knex('users').pluck('id')
      try {
        const { stdout } = await promisify(execFile)(command, [...args, blockOf(language)], {
          env: { PATH: process.env.PATH, TIDINGS_URL: url, TIDINGS_API_KEY: apiKey, TIDINGS_API_SECRET: apiSecret },
          timeout: 60_000,
        })
        const made = (await server.database.knex('users').pluck('id')).filter(id => !before.includes(id))
        assert.deepEqual(made, [stdout.trim()])
        assert.equal(keys.length, 2)
        assert.equal(keys[0], keys[1])
      } finally {
        way.close()
      }
    })
  }
})
