import assert from 'node:assert/strict'
import { spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, mkdtempSync, readFileSync } from 'node:fs'
import { rm } from 'node:fs/promises'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after, describe, test } from 'node:test'
import { repository, run } from '../scripts/checkout.ts'
import { whenItListens } from '../support/listening.ts'
import { freePort } from '../support/ports.ts'
import { unlessFullSize } from '../support/size.ts'
import { startSender } from './sender.ts'

const vectorsFile = path.join(repository, 'docs/receivers/vectors.json')
const { keySets } = JSON.parse(readFileSync(vectorsFile, 'utf8')) as {
  keySets: Record<string, { status: number; body: unknown }>
}
const folder = mkdtempSync(path.join(tmpdir(), 'tidings-languages-'))
after(() => rm(folder, { recursive: true, force: true }))

/** Answers as each key set does, at its name. */
const server = createServer((request, response) => {
  const name = request.url!.slice(1)
  const { status, body } = keySets[name]!
  response.writeHead(status, { location: '/published' })
  response.end(
    `${typeof body === 'string' ? body : JSON.stringify(body)}${name === 'huge' ? ' '.repeat(256 * 1024) : ''}`,
  )
})
await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
after(() => server.close().closeAllConnections())
const origin = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
const sender = await startSender()

/** Why a language is left out on this machine; undefined where it is there. */
const missing = (program: string, ...probe: string[]): string | undefined => {
  const { status, error } = spawnSync(program, probe, { stdio: 'ignore' })
  return error || status !== 0 ? `${[program, ...probe].join(' ')} does not run on this machine` : undefined
}

/** A Python that has the library; made once, below node_modules, where the machine's own has not. */
const python = (): { program: string; lacks: string | undefined } => {
  if (!missing('python3', '-c', 'import cryptography')) return { program: 'python3', lacks: undefined }
  const environment = path.join(repository, 'node_modules/.cache/tidings/python')
  const program = path.join(environment, 'bin/python')
  if (!existsSync(program)) {
    spawnSync('python3', ['-m', 'venv', environment], { stdio: 'ignore' })
    spawnSync(program, ['-m', 'pip', 'install', '--quiet', 'cryptography'], { stdio: 'ignore' })
  }
  return { program, lacks: missing(program, '-c', 'import cryptography') }
}

/** Go compiles its whole library at first. */
const COMPILE_TIMEOUT_MS = 600_000

type Language = {
  lacks: string | undefined
  /** What must run before. */
  build?: [program: string, ...args: string[]]
  test: [program: string, ...args: string[]]
  example: [program: string, ...args: string[]]
}

const { program: pythonProgram, lacks: lacksPython } = python()
const classes = path.join(folder, 'java')
const languages: Record<string, Language> = {
  python: {
    lacks: lacksPython,
    test: [pythonProgram, '-m', 'unittest', '-q'],
    example: [pythonProgram, 'main.py'],
  },
  go: {
    lacks: missing('go', 'version'),
    build: ['go', 'build', '-o', path.join(folder, 'go-receiver'), '.'],
    // Its cache knows nothing of a change of the vectors.
    test: ['go', 'test', '-count=1', '-vet=off', './...'],
    example: [path.join(folder, 'go-receiver')],
  },
  java: {
    // Its compiler takes as long as all others together.
    lacks: missing('javac', '-version') ?? (unlessFullSize || undefined),
    build: ['javac', '-d', classes, 'TidingsReceiver.java', 'Main.java', 'ReceiverTest.java'],
    test: ['java', '-cp', classes, 'ReceiverTest', vectorsFile, origin],
    example: ['java', '-cp', classes, 'Main'],
  },
  php: {
    lacks: missing('php', '-r', 'exit(extension_loaded("sodium") && extension_loaded("pdo_sqlite") ? 0 : 1);'),
    test: ['php', 'test.php', origin],
    example: ['php', '-S', '127.0.0.1:PORT', 'index.php'],
  },
  ruby: {
    lacks: missing('ruby', '-ropenssl', '-e', 'exit 0'),
    test: ['ruby', 'test.rb', origin],
    example: ['ruby', 'main.rb'],
  },
}

for (const [name, { lacks, build, test: testing, example }] of Object.entries(languages)) {
  describe(`the receiver in ${name}`, { skip: lacks ?? false }, () => {
    const cwd = path.join(repository, 'examples', name)
    const env = {
      ...process.env,
      PYTHONDONTWRITEBYTECODE: '1',
    }

    test('answers every vector as it should, and handles once', { timeout: COMPILE_TIMEOUT_MS }, async () => {
      if (build) {
        const built = await run(build[0], build.slice(1), { cwd, env })
        assert.equal(built.code, 0, built.stderr)
      }
      const { code, stdout, stderr } = await run(testing[0], testing.slice(1), { cwd, env })
      assert.equal(code, 0, stdout + stderr)
    })

    test('receives a delivery as its example starts it, once', async () => {
      const port = await freePort()
      const url = `http://127.0.0.1:${port}/hooks`
      const args = example.slice(1).map(arg => arg.replace('PORT', `${port}`))
      const child = spawn(example[0], args, {
        cwd,
        env: {
          ...env,
          PORT: `${port}`,
          ISSUER: sender.issuer.url,
          AUDIENCE: url,
          DATABASE: path.join(folder, 'receipts.db'),
        },
        stdio: ['ignore', 'pipe', 'pipe'],
      })
      let printed = ''
      for (const stream of [child.stdout, child.stderr])
        stream.setEncoding('utf8').on('data', text => (printed += text))
      try {
        const eventId = '01930000-0000-7000-8000-000000000001'
        assert.equal((await whenItListens(() => sender.deliver(url, { eventId }))).status, 200, printed)
        const again = await sender.deliver(url, { eventId })
        assert.equal(again.status, 401)
        assert.match(again.headers.get('www-authenticate')!, /error_description="replay"/)
        assert.match(printed, /project_report_quarterly_overdue/)
      } finally {
        if (child.kill('SIGKILL')) await once(child, 'exit')
      }
    })
  })
}
