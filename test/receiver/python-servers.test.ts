import assert from 'node:assert/strict'
import { spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { existsSync } from 'node:fs'
import path from 'node:path'
import { describe, test } from 'node:test'
import { repository } from '../scripts/checkout.ts'
import { whenItListens } from '../support/listening.ts'
import { freePort } from '../support/ports.ts'
import { isAtFullSize } from '../support/size.ts'
import { startSender } from './sender.ts'

// The receiver in Python under the servers and frameworks that docs/receivers/python.md names.

const environment = path.join(repository, 'node_modules/.cache/tidings/python-servers')
const bin = (name: string): string => path.join(environment, 'bin', name)
const PACKAGES = ['cryptography', 'uvicorn', 'hypercorn', 'gunicorn', 'fastapi', 'uvicorn-worker']

/** Why the servers are left out; undefined where they are there. They are installed once, which takes half a minute. */
const lacks = (): string | undefined => {
  const probe = () => spawnSync(bin('python'), ['-c', 'import uvicorn, hypercorn, gunicorn, fastapi, uvicorn_worker'])
  if (existsSync(bin('python')) && probe().status === 0) return undefined
  if (!isAtFullSize) return '`npm run test:all` installs Python’s servers and tries them'
  spawnSync('python3', ['-m', 'venv', environment], { stdio: 'ignore' })
  spawnSync(bin('python'), ['-m', 'pip', 'install', '--quiet', ...PACKAGES], { stdio: 'ignore' })
  return probe().status === 0 ? undefined : 'Python’s servers cannot be installed on this machine'
}

const sender = await startSender()

/** Each server, the application as its argument names it, and the path of the webhook. */
const starts: [name: string, program: string, args: (port: number) => string[], at?: string][] = [
  ['uvicorn', 'uvicorn', port => ['receiver:app', '--port', `${port}`]],
  ['hypercorn', 'hypercorn', port => ['receiver:app', '--bind', `127.0.0.1:${port}`]],
  ['gunicorn', 'gunicorn', port => ['receiver:application', '--bind', `127.0.0.1:${port}`]],
  [
    'gunicorn with workers of uvicorn',
    'gunicorn',
    port => ['receiver:app', '--worker-class', 'uvicorn_worker.UvicornWorker', '--bind', `127.0.0.1:${port}`],
  ],
  ['FastAPI, as a route', 'uvicorn', port => ['receiver:routed', '--port', `${port}`]],
  ['FastAPI, mounted', 'uvicorn', port => ['receiver:mounted', '--port', `${port}`], '/hooks/'],
]

describe('the receiver in Python', { skip: lacks() ?? false }, () => {
  for (const [name, program, args, at = '/hooks'] of starts) {
    test(`receives a delivery under ${name}, once`, async () => {
      const port = await freePort()
      const url = `http://127.0.0.1:${port}${at}`
      const env = {
        ...process.env,
        PYTHONPATH: path.join(repository, 'examples/python'),
        PYTHONDONTWRITEBYTECODE: '1',
        ISSUER: sender.issuer.url,
        AUDIENCE: url,
      }
      const cwd = path.join(repository, 'test/receiver/python')
      const child = spawn(bin(program), args(port), { cwd, env, stdio: ['ignore', 'pipe', 'pipe'], detached: true })
      let printed = ''
      for (const stream of [child.stdout, child.stderr]) {
        stream.setEncoding('utf8').on('data', text => (printed += text))
      }
      try {
        const eventId = '01930000-0000-7000-8000-000000000001'
        assert.equal((await whenItListens(() => sender.deliver(url, { eventId }))).status, 200, printed)
        const again = await sender.deliver(url, { eventId })
        assert.equal(again.status, 401, printed)
        assert.match(again.headers.get('www-authenticate')!, /error_description="replay"/)
        assert.match(printed, /project_report_quarterly_overdue/)
      } finally {
        // gunicorn's workers are its children.
        if (child.exitCode === null) {
          process.kill(-child.pid!, 'SIGKILL')
          await once(child, 'exit')
        }
      }
    })
  }
})
