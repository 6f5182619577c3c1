// npm run pictures: draws docs/pictures/*.svg from the running program. It starts a sandbox with endpoints that answer
// well and badly, lets reports be submitted, and captures what the command line shows in a terminal. Needs tmux.
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { launchSandbox } from '../test/cli/sandbox-server.ts'
import { startShell, type Terminal } from '../test/cli/terminal.ts'
import { tidings } from '../test/cli/tidings.ts'
import { eventually } from '../test/support/eventually.ts'
import { type Answer, startReceiver } from '../test/support/receiver.ts'
import { pictureOf } from './terminal-picture.ts'

/** The endpoints, and what they answer to their first, second, third … delivery; the last answer goes on. */
const ENDPOINTS: Record<string, Answer[]> = {
  Ledger: [{ status: 503, body: 'the ledger is being upgraded' }, 'reset', { status: 200, body: 'booked' }],
  Archive: [{ status: 200 }],
  Payroll: [{ status: 503, body: 'try again later' }],
  'Field office': [{ status: 400, body: 'no such project' }],
}
const QUARTERS = ['2026-1', '2026-2']

const pathOf = (name: string): string => `/${name.toLowerCase().replace(' ', '-')}`

/** An endpoint for each webhook on one port; it answers each event as if that were its first. */
const startEndpoints = () => {
  const seen = new Map<string, number>()
  return startReceiver({
    answer: ({ path, body }) => {
      if (body.eventType === 'ping') return { status: 200 }
      const n = seen.get(`${path} ${body.eventId}`) ?? 0
      seen.set(`${path} ${body.eventId}`, n + 1)
      const answers = ENDPOINTS[Object.keys(ENDPOINTS).find(name => pathOf(name) === path)!]!
      return answers[Math.min(n, answers.length - 1)]!
    },
  })
}

/** Runs one command to its end, and answers with its lines. Throws what it said where it failed. */
const commandIn = (home: string) => async (line: string[]) => {
  const { code, stdout, stderr } = await tidings(line, { home })
  if (code !== 0) throw new Error(`tidings ${line.join(' ')}: ${stderr}`)
  return stdout.trim().split('\n')
}
type Command = ReturnType<typeof commandIn>

/** Registers the webhooks, and has reports submitted. Answers with the delivery whose story is told. */
const play = async (run: Command, url: string): Promise<string> => {
  const [projects, [user]] = await Promise.all([
    run(['projects', 'list', '--output', 'id']),
    run(['users', 'list', '--limit', '1', '--output', 'id']),
  ])
  for (const name of Object.keys(ENDPOINTS))
    await run(['webhooks', 'create', new URL(pathOf(name), url).href, '--name', name, '--output', 'id'])
  for (const quarter of QUARTERS) {
    for (const project of projects.slice(0, 2))
      await run(['reports', 'submit', '--project', project!, '--quarter', quarter, '--submitter', user!])
  }
  const [submitted] = await run(['reports', 'list', '--status', 'submitted', '--limit', '1', '--output', 'id'])
  await run(['reports', 'approve', submitted!, '--approver', user!])
  return (await run(['deliveries', 'list', '--webhook', 'Ledger', '--limit', '1', '--output', 'id']))[0]!
}

const draw = (name: string, svg: string): void => {
  const folder = process.argv[2] ?? fileURLToPath(new URL('../docs/pictures', import.meta.url))
  mkdirSync(folder, { recursive: true })
  writeFileSync(join(folder, `${name}.svg`), svg)
}

/** The shell's, below what a command has printed. */
const PROMPT = /\n[$#]$/

const capture = async (
  terminal: Terminal,
  name: string,
  { line, shown, columns }: { line: string; shown: RegExp; columns: number },
) => {
  await terminal.clear()
  await terminal.type(`clear; ${line}\n`)
  await terminal.waitFor(shown)
  const screen = (await terminal.screen({ codes: true })).trimEnd()
  draw(name, pictureOf(screen.replace(PROMPT, ''), line, columns))
}

const home = mkdtempSync(join(tmpdir(), 'tidings-pictures-'))
const endpoints = await startEndpoints()
const sandbox = await launchSandbox(home, { TIDINGS_RETRY_SCHEDULE: '5,10,20,40,80,160,320,640,1280,2560' })
const terminals: Terminal[] = []
const open = async (columns: number, rows: number): Promise<Terminal> => {
  const terminal = await startShell({ columns, rows, env: { XDG_CONFIG_HOME: home, TZ: 'UTC', PS1: '$ ' } })
  terminals.push(terminal)
  return terminal
}
try {
  const run = commandIn(home)
  const delivery = await play(run, endpoints.url)
  await eventually(
    'the delivery to the ledger to arrive',
    () => run(['deliveries', 'list', '--webhook', 'Ledger', '--status', 'delivered', '--output', 'id']),
    ids => ids.includes(delivery),
    { timeoutMs: 60_000, everyMs: 500 },
  )
  const dashboard = await open(110, 26)
  await capture(dashboard, 'dashboard', {
    line: 'tidings dashboard',
    // The line of the last day, of each webhook.
    shown: /● live[^]*LAST DAY(?:[^]*[▁-█]){4}[^]*WHAT HAPPENED[^]*delivered/,
    columns: 110,
  })
  const timeline = await open(110, 40)
  const line = `tidings deliveries show ${delivery.slice(-6)}`
  await capture(timeline, 'timeline', { line, shown: /"quarter"[^]*\n[$#]/, columns: 110 })
} finally {
  for (const terminal of terminals) await terminal.close()
  await sandbox.stop()
  await endpoints.close()
  rmSync(home, { recursive: true, force: true })
}
