import assert from 'node:assert/strict'
import { symlinkSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { after, test } from 'node:test'
import { fileURLToPath } from 'node:url'
import { displayWidth } from '../../cli/output/table.ts'
import { eventually } from '../support/eventually.ts'
import { type Answer, startReceiver } from '../support/receiver.ts'
import { atFullSize } from '../support/size.ts'
import { startSandbox } from './sandbox-server.ts'
import { noTerminal, openTerminal } from './terminal.ts'
import { temporaryFolder, tidings } from './tidings.ts'

// An afternoon with the command line in a terminal, where each step follows what the previous one said.

const home = temporaryFolder()
const bin = join(home, 'bin')
symlinkSync(dirname(fileURLToPath(new URL('../../bin/tidings.js', import.meta.url))), bin)
const quiet = async (...line: string[]) => (await tidings(line, { home })).stdout

/** What the customers' endpoints answer, by their paths; 200 where nothing is said. */
const answers = new Map<string, Answer>()
const customers = await startReceiver({ answer: ({ path }) => answers.get(path) ?? { status: 200 } })
after(() => customers.close())
const at = (customer: string) => new URL(customer, customers.url).href

writeFileSync(join(home, 'setup'), `PS1='$ '; cd ${home}; tidings() { node ${bin}/tidings.js "$@"; }\n`)
if (!noTerminal) await startSandbox(home)

for (const [columns, rows] of [[80, 24] as const, ...atFullSize([[200, 60] as const], [])]) {
  test(`an afternoon in a terminal of ${columns} × ${rows}`, { skip: noTerminal, timeout: 120_000 }, async t => {
    const shell = await openTerminal(['bash', '--init-file', join(home, 'setup'), '-i'], {
      env: { XDG_CONFIG_HOME: home, PATH: `${dirname(process.execPath)}:${process.env.PATH}` },
      columns,
      rows,
    })
    await shell.waitForOutput(/^\$ /m)
    const seen: string[] = []
    /** Types a line, and returns its output when the prompt is back; the keys answer its questions. */
    const type = async (line: string, ...questions: [RegExp, ...string[]][]): Promise<string> => {
      await shell.clear()
      await shell.press(`${line}; echo "=$?="`, 'Enter')
      for (const [question, ...keys] of questions) {
        await shell.waitForOutput(question)
        await shell.press(...keys)
      }
      const shown = await shell.waitForOutput(/^=\d+=\s*\$ $/m, 20_000).catch(() => shell.waitForOutput(/^=\d+=/m))
      seen.push(shown)
      return shown
    }
    const first = (pattern: RegExp, text: string): string => {
      const found = pattern.exec(text.replaceAll('\n', ' ').replaceAll(/ +/g, ' '))
      assert.ok(found, `${pattern} is not in:\n${text}`)
      return found[1] ?? found[0]
    }
    t.after(() => answers.clear())

    // An integrator sets up ten webhooks from a file, one of them wrong at first.
    const file = Array.from({ length: 10 }, (_, index) => ({
      url: at(`/${columns}/customer-${index + 1}`),
      events: ['project_report_quarterly_submitted'],
    }))
    writeFileSync(join(home, 'webhooks.json'), JSON.stringify(file))
    answers.set(`/${columns}/customer-7`, { status: 404 })
    assert.match(await type('tidings webhooks create --file webhook.json'), /no such file[\s\S]*=2=/)
    assert.match(await type('tidings webhooks create --file webhooks.json --dry-run'), /10 to create[\s\S]*=0=/)
    const partly = await type('tidings webhooks create --file webhooks.json')
    assert.match(partly, /Entry 7: [\s\S]*404[\s\S]*9 created, 1 failed[\s\S]*run it again[\s\S]*=1=/)
    answers.clear()
    assert.match(await type('tidings webhooks create --file webhooks.json'), /1 created, 9 unchanged[\s\S]*=0=/)

    // A support engineer finds out why one of the customers got nothing.
    const [project] = JSON.parse(await quiet('projects', 'list', '--limit', '1'))
    const [user] = JSON.parse(await quiet('users', 'list', '--limit', '1'))
    let year = 2000 + columns
    const submit = () =>
      quiet('reports', 'submit', '--project', project.id, '--quarter', `${year++}-1`, '--submitter', user.id)
    answers.set(`/${columns}/customer-3`, { status: 401, body: 'unknown issuer' })
    await submit()
    const [refused] = JSON.parse(await quiet('query', 'webhooks', JSON.stringify({ url: file[2]!.url })))
    await customers.waitFor(requests => requests.some(({ path }) => path === `/${columns}/customer-3`))
    const webhook = () => quiet('webhooks', 'show', refused.id)
    await eventually('the delivery to be rejected', webhook, shown => shown.includes('"rejected": 1'))
    const list = await type('tidings webhooks list')
    assert.match(list, /tomer-3 .*1 rejected/)
    const examined = await type(`tidings doctor --webhook ${refused.id}`)
    const story = first(/tidings deliveries show [0-9a-f-]{36}/, examined)
    const told = await type(story)
    assert.match(told, /attempt 1 +answered 401[\s\S]*unknown issuer/)
    const again = first(/tidings deliveries redeliver [0-9a-f-]{36}/, told)
    answers.clear()
    const queued = await type(again)
    const next = first(/tidings deliveries show [0-9a-f-]{36}/, queued)
    const redelivered = () => quiet(...next.split(' ').slice(1))
    await eventually('the redelivery to arrive', redelivered, shown => shown.includes('"delivered"'))
    assert.match(await type(next), /Delivered after 1 attempt[\s\S]*=0=/)

    // An integrator rehearses an outage.
    await shell.clear()
    await shell.press('tidings listen --register --port 0 --answer 500,reset,429:1,200; echo "=$?="', 'Enter')
    const listening = await shell.waitForOutput(/Registered as webhook/)
    await submit()
    const rehearsed = await shell.waitForOutput(
      /answered 500[\s\S]*broken off[\s\S]*answered 429[\s\S]*answered 200 .*submitted/,
    )
    seen.push(listening, rehearsed)
    await shell.press('C-c')
    assert.match(
      await shell.waitForOutput(/^=0=/m),
      /The webhook is disabled\.[\s\S]*Received 4 deliveries, 0 of them not valid/,
    )

    // Whoever runs the integration rotates its access token.
    const made = (name: string) =>
      `tidings tokens create --name ${name} --permissions read,webhooks --save ci${columns}`
    assert.match(await type(made('ci-1')), /Saved as profile ci/)
    const rotated = await type(made('ci-2'))
    const revoke = first(/tidings tokens revoke tk_[\w-]+/, rotated)
    assert.match(await type(first(/tidings whoami --profile \w+/, rotated)), /Name +ci-2[\s\S]*=0=/)
    assert.match(await type(revoke, [/\(y\/N\):/, 'n', 'Enter']), /Not confirmed[\s\S]*=1=/)
    assert.match(await type(revoke, [/\(y\/N\):/, 'y', 'Enter']), /Revoked +2[\s\S]*=0=/)
    assert.match(await type('tidings tokens list --active'), /ci-2/)

    // Nothing was wider than the terminal except text to copy; tmux joins wrapped lines.
    const wide = seen
      .flatMap(text => text.split('\n'))
      .filter(line => displayWidth(line) > columns && !/^(\$ |Payload)|^(Revoke|\s*→?\s*tidings )/.test(line))
    assert.deepEqual(wide, [])
  })
}
