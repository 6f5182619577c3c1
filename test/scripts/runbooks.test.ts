import assert from 'node:assert/strict'
import { spawn, spawnSync } from 'node:child_process'
import { chmodSync, readFileSync, writeFileSync } from 'node:fs'
import path from 'node:path'
import { text } from 'node:stream/consumers'
import { after, before, describe, it } from 'node:test'
import { temporaryFolder } from '../cli/tidings.ts'
import { masterKey, type ServerProcess, startServerProcess } from '../delivery/server-process.ts'
import { freshDatabase, type TestDatabase } from '../support/databases.ts'
import { eventually } from '../support/eventually.ts'
import { pastesOf, RUN_WITH_SERVER, runnable } from '../support/pasted.ts'
import { type Receiver, startReceiver } from '../support/receiver.ts'
import { unlessFullSize } from '../support/size.ts'
import { repository } from './checkout.ts'

// Each page for the night is followed by the letter, in bash and zsh: its commands run, in order, beside a server that
// has a webhook, an event, and a rejected delivery.

/**
 * What the README of the pages defines in the shell, for this server. A search may find nothing, and a doctor exits
 * with 1 if it finds a problem.
 */
const BEFORE = `
log() { cat server.log; }
grep() { command grep "$@" || test $? = 1; }
tidings() { command tidings "$@" || case "$*" in *doctor*) test $? = 1 ;; *) false ;; esac; }
`

/** The commands of a page. The first block of operations.md is run by test/cli/readme.test.ts. */
const commandsIn = (page: string): string[] =>
  pastesOf(page)
    .filter(paste => page !== 'docs/operations.md' || !paste.includes('ops.env'))
    .map(runnable)
    .filter(commands => commands.trim() !== '')

it('the pages for the night all say what it means, and how it is seen to be over', () => {
  const pages = RUN_WITH_SERVER.filter(page => page.startsWith('docs/runbooks/'))
  assert.ok(pages.length >= 18)
  for (const page of pages) {
    const words = readFileSync(path.join(repository, page), 'utf8')
    for (const part of ['**What it means.**', '**Afterwards.**']) assert.ok(words.includes(part), `${page}: ${part}`)
  }
})

for (const shell of ['bash', 'zsh']) {
  const isHere = spawnSync(shell, ['--version']).status === 0
  const skip = isHere ? unlessFullSize : `${shell} is not installed`
  describe(`the pages for the night, in ${shell}`, { skip }, () => {
    const folder = temporaryFolder()
    let fresh: TestDatabase
    let server: ServerProcess
    let receiver: Receiver
    const env: Record<string, string> = {}

    const run = async (script: string): Promise<string> => {
      const here = BEFORE + script.replaceAll('http://127.0.0.1:9400', server?.url)
      const child = spawn(shell, ['-euo', 'pipefail', '-c', here], {
        cwd: folder,
        env,
        stdio: ['ignore', 'pipe', 'pipe'],
      })
      const closed = new Promise(resolve => child.once('close', resolve))
      const [out, told, code] = await Promise.all([text(child.stdout), text(child.stderr), closed])
      assert.equal(code, 0, `${script}\n${out}\n${told}`)
      return out
    }

    before(async () => {
      fresh = await freshDatabase('sqlite')
      const program = path.join(folder, 'tidings')
      writeFileSync(
        program,
        `#!/bin/sh\nexec '${process.execPath}' '${path.join(repository, 'bin/tidings.js')}' "$@"\n`,
      )
      chmodSync(program, 0o755)
      Object.assign(env, {
        PATH: `${folder}:${process.env.PATH}`,
        XDG_CONFIG_HOME: folder,
        TIDINGS_DATABASE_URL: fresh.url,
        TIDINGS_MASTER_KEY: masterKey,
        TIDINGS_ALLOW_NETWORKS: '127.0.0.0/8',
        TIDINGS_HOME: '/nonexistent',
      })
      await run('tidings server migrate --quiet; tidings server seed --quiet')
      server = await startServerProcess(fresh.url, { TIDINGS_ROLES: 'api,delivery,scheduler' })
      const token = JSON.parse(await run('tidings server token --name ops --permissions admin --output json'))
      Object.assign(env, {
        TIDINGS_URL: server.url,
        OPS: server.url,
        REQUEST: 'of-nobody',
        TIDINGS_PORT: new URL(server.url).port,
        TIDINGS_API_KEY: token.apiKey,
        TIDINGS_API_SECRET: token.secret,
        TOKEN: JSON.parse(await run('tidings server token --name other --permissions read --output json')).id,
      })
      receiver = await startReceiver({ answer: ({ body }) => ({ status: body.eventType === 'ping' ? 200 : 404 }) })
      env.WEBHOOK = (await run(`tidings webhooks create ${receiver.url} --output id`)).trim()
      env.ENDPOINT = receiver.url
      const [project, user] = await Promise.all(
        ['projects', 'users'].map(noun => run(`tidings ${noun} list --limit 1 --output id`)),
      )
      await run(`tidings reports submit --project ${project!.trim()} --quarter 2026-3 --submitter ${user!.trim()}`)
      env.EVENT = (await run('tidings events list --type project_report_quarterly_submitted --output id')).trim()
      const rejected = () => run('tidings deliveries list --status rejected --output id')
      env.DELIVERY = (await eventually('the delivery to be refused', rejected, found => found !== '')).trim()
      const keys = JSON.parse(await run('tidings server keys list --output json')) as { kid: string; status: string }[]
      env.KID = keys.find(({ status }) => status === 'signing')!.kid
    })
    after(async () => {
      await server?.end('SIGTERM')
      await receiver?.close()
      await fresh?.drop()
    })

    for (const page of RUN_WITH_SERVER) {
      it(`${page} can be followed by the letter`, async () => {
        writeFileSync(path.join(folder, 'server.log'), server.log())
        for (const commands of commandsIn(page)) await run(commands)
      })
    }
  })
}
