import assert from 'node:assert/strict'
import { fork } from 'node:child_process'
import { once } from 'node:events'
import { after, test } from 'node:test'
import { fileURLToPath } from 'node:url'
import type { Argument, CommandUnknownOpts, Option } from '@commander-js/extra-typings'
import { idsFrom } from '../../cli/completion/values.ts'
import { wholeProgram } from '../../cli/main.ts'
import { connectedTo, type Received, startStubServer } from './stub-server.ts'
import { temporaryFolder } from './tidings.ts'

// Every argument and option that takes an id, as the tree of commands has them: given a name, a name that nothing has,
// and an id that does not exist.

const ID = '01a2021a-ba70-7411-85e9-43a90c4955c6'
const NOBODY = '00000000-0000-7000-8000-000000000000'
const NAME = 'Ledger & Sons'
const WRONG = 'Lodger'

interface Slot {
  title: string
  command: CommandUnknownOpts
  path: string[]
  /** The API's list that has the name. */
  resource: string
  /** The argument's place, or the option's flag. */
  at: number | string
}

/** What stands for an id in a usage: `<id>`, `[ids...]`, or the noun of what has one. */
const TAKES_ID = /^(ids?|webhooks?|deliver(y|ies)|events?|organisations?|projects?|users?|reports?|subject)$/
const placeholderOf = ({ flags }: Option): string => /[<[]([\w-]+)(\.\.\.)?[>\]]$/.exec(flags)?.[1] ?? ''
/** An option of this name takes an id, whatever its placeholder. */
const NAMES_ONE = /^--(webhook|delivery|event|organisation|project|user|report|submitter|approver|subject|token)(-id)?$/

/** What works on a database itself, tested with one; the number of something; and a receiver’s own. */
const ELSEWHERE = [
  'server token --organisation',
  'server restored --keep',
  'server seed --organisations',
  'server seed --projects',
  'server seed --users',
  'server seed --webhooks',
  'server seed --events',
  'server seed --deliveries',
  'doctor --webhook',
]

/** What stands for anything else. A new one has to be told from an id here. */
const TAKES_NO_ID = `
  answers body by code command count date document duration fields file files folder how json key kid list method ms n
  name names number origin path pattern profile quarter resource seconds selector shell source status statuses text
  time token type types url when`.match(/\w+/g)!

const leaves = (command: CommandUnknownOpts, path: string[] = []): [string[], CommandUnknownOpts][] =>
  command.commands.length === 0
    ? [[path, command]]
    : command.commands.flatMap(child => leaves(child, [...path, child.name()]))

const resourceOf = (path: string[], at: number | string): string => {
  const from = typeof at === 'string' && idsFrom[at] ? idsFrom[at] : (idsFrom[path[0]!] ?? idsFrom.webhooks)
  return from!.query
}

const program = await wholeProgram()
const slots = leaves(program).flatMap(([path, command]): Slot[] => {
  const found: (number | string)[] = [
    ...command.registeredArguments.flatMap((argument, index) => (TAKES_ID.test(argument.name()) ? [index] : [])),
    ...command.options.flatMap(option =>
      TAKES_ID.test(placeholderOf(option as Option)) || NAMES_ONE.test(option.long ?? '') ? [option.long!] : [],
    ),
  ]
  return found.flatMap(at => {
    const title = `${path.join(' ')} ${typeof at === 'number' ? `<${command.registeredArguments[at]!.name()}>` : at}`
    return ELSEWHERE.includes(title) ? [] : [{ title, command, path, at, resource: resourceOf(path, at) }]
  })
})

/** What else a line needs: values of what is required, by placeholder or flag, and what lets a command end. */
const FILLED: Record<string, string> = {
  name: 'New',
  url: 'https://example.com/hooks',
  resource: 'webhooks',
  token: 'x',
  '--quarter': '2026-3',
  '--since': '1d',
  '--attempt': '1',
  '--status': '200',
  '--permissions': 'read',
  '--name': 'new',
}
const BESIDES: Record<string, string[]> = {
  'webhooks update': ['--events', 'all'],
  // By id, its place would need no row.
  query: ['--sort', 'url'],
  'deliveries redeliver --organisation': ['--webhook', ID],
  'deliveries redeliver --project': ['--webhook', ID],
  listen: ['--port', '0', '--run', 'exit 9'],
  // Of an organisation.
  'why --project': [ID],
}

const filled = (argument: Argument): string => FILLED[argument.name()] ?? argument.argChoices?.[0] ?? ID

const lineOf = ({ title, command, path, at }: Slot, given: string): string[] => {
  const words = command.registeredArguments.flatMap((argument, index) =>
    index === at ? [given] : argument.required || argument.name() in FILLED ? [filled(argument as Argument)] : [],
  )
  const options = command.options.flatMap(({ long, mandatory }) =>
    long === at ? [long!, given] : mandatory ? [long!, FILLED[long!] ?? ID] : long === '--yes' ? ['--yes'] : [],
  )
  return [...path, ...words, ...options, ...(BESIDES[title] ?? BESIDES[path.join(' ')] ?? [])]
}

/** The requests of one line besides those that look a name up. */
let sent: Received[] = []
let resource = ''
const stub = await startStubServer(one => {
  const variables = JSON.stringify(one.variables)
  if (one.query.includes('changes: auditLog')) return { data: { changes: [] } }
  const [, list] = /\brows: (\w+)\(/.exec(one.query) ?? []
  if (list === resource && variables.includes(JSON.stringify(NAME))) return { data: { rows: [{ id: ID, name: NAME }] } }
  const [, id] = /"selector":\{"id":"([^"]+)"\}/.exec(variables) ?? []
  if (list && id) return { data: { rows: id === ID ? [{ id, name: NAME }] : [] } }
  if (id === NOBODY) return { data: { [/\{ (\w+)\(/.exec(one.query)?.[1] ?? '']: [] } }
  if (!/"01a2021a|"0{8}-/.test(variables)) return { data: { rows: [] } }
  sent.push(one)
  return { errors: [{ message: 'Enough is known.', extensions: { code: 'CONFLICT' } }] }
})

const child = fork(fileURLToPath(new URL('run-lines.ts', import.meta.url)), {
  execArgv: ['--disable-warning=ExperimentalWarning'],
  env: { PATH: process.env.PATH!, XDG_CONFIG_HOME: temporaryFolder(), ...connectedTo(stub) },
})
// A command that was ended early may have left its handler of a gentler signal.
after(() => child.kill('SIGKILL'))

const run = async (slot: Slot, given: string) => {
  sent = []
  resource = slot.resource
  const answered = once(child, 'message') as Promise<[{ code: number; stderr: string }]>
  child.send(lineOf(slot, given))
  const [{ code, stderr }] = await answered
  return { code, stderr, sent: sent.map(({ query, variables }) => `${query} ${JSON.stringify(variables)}`) }
}

test('there are arguments and options that take an id, and of every other it is known that it takes none', () => {
  assert.ok(slots.length > 40, `${slots.length}`)
  const unknown = leaves(program).flatMap(([path, command]) =>
    [
      ...command.registeredArguments.map(argument => argument.name()),
      ...command.options.map(option => placeholderOf(option as Option)),
    ].flatMap(name => (name === '' || TAKES_ID.test(name) || TAKES_NO_ID.includes(name) ? [] : [`${path} ${name}`])),
  )
  assert.deepEqual(unknown, [])
})

/** The id goes into no request: it is compared on this machine, or asks for a stream, which the stub does not have. */
const SENT_NOWHERE = /^(listen|verify|deliveries watch) /
/** They have no names; a report has a project and a quarter. */
const NAMELESS = ['deliveries', 'events', 'auditLog', 'projectReports']

for (const slot of slots) {
  const { title } = slot
  if (!NAMELESS.includes(slot.resource)) {
    test(`a name is taken by ${title}`, async () => {
      const { code, stderr, sent: requests } = await run(slot, NAME)
      assert.ok(code < 2 || SENT_NOWHERE.test(title), `${code}: ${stderr}`)
      if (SENT_NOWHERE.test(title)) return assert.notEqual(code, 3, stderr)
      assert.ok(requests.length > 0, stderr)
      for (const request of requests) {
        assert.ok(request.includes(ID), request)
        assert.ok(!request.includes(NAME), request)
      }
    })
  }

  test(`a name that nothing has is exit code 3 in ${title}`, async () => {
    const { code, stderr, sent: requests } = await run(slot, WRONG)
    assert.equal(code, 3, stderr)
    assert.match(stderr, /Lodger/)
    assert.deepEqual(
      requests.filter(request => request.startsWith('mutation')),
      [],
    )
  })

  test(`an id that does not exist is never an empty list in ${title}`, async () => {
    const { code, stderr, sent: requests } = await run(slot, NOBODY)
    if (title === 'verify --webhook-id') return assert.notEqual(code, 0)
    // A mutation refuses an unknown id itself, or creates what has it.
    if (code !== 3) assert.match(requests.join('\n'), /^mutation .*00000000-0000-7000-8000-000000000000/s, stderr)
  })
}
