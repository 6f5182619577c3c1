import assert from 'node:assert/strict'
import { type ChildProcess, spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { cp, readFile, writeFile } from 'node:fs/promises'
import { createServer } from 'node:http'
import path from 'node:path'
import { after, describe, test } from 'node:test'
import { setTimeout } from 'node:timers/promises'
import { scenes, unseen } from '../../cli/rehearse/judge.ts'
import { type Answer, createReceiver, type DeliveryRequest, expressReceiver } from '../../receiver/index.ts'
import { repository, run } from '../scripts/checkout.ts'
import { whenItListens } from '../support/listening.ts'
import { freePort } from '../support/ports.ts'
import { startReceiver } from '../support/receiver.ts'
import { atFullSize, everyNth } from '../support/size.ts'
import { startSandbox } from './sandbox-server.ts'
import { temporaryFolder, tidings } from './tidings.ts'

const home = temporaryFolder()
const issuer = await startSandbox(home)
const folder = temporaryFolder()

type Told = {
  ok: boolean
  passed: number
  problems: number
  checks: { scene: string; name: string; status: string; found: string; next: string | null }[]
}

/** Registers the receiver at a URL as soon as it answers, and rehearses it. */
const rehearsed = async (url: string): Promise<{ code: number | null; stderr: string; told: Told }> => {
  await whenItListens(() => fetch(url))
  const made = await tidings(['webhooks', 'create', url, '--output', 'json'], { home })
  assert.equal(made.code, 0, made.stderr)
  const { code, stdout, stderr } = await tidings(['rehearse', JSON.parse(made.stdout).id, '--output', 'json'], { home })
  assert.notEqual(stdout, '', stderr)
  return { code, stderr, told: JSON.parse(stdout) }
}

const problemsOf = ({ checks }: Told): string[] =>
  checks.filter(({ status }) => status === 'problem').map(({ scene }) => scene)
const readable = (part: string): Record<string, unknown> => {
  try {
    return JSON.parse(Buffer.from(part, 'base64url').toString()) ?? {}
  } catch {
    return {}
  }
}
/** The same but for `together`, in which chance decides what a receiver that takes replays does. */
const certainProblemsOf = (told: Told): string[] => problemsOf(told).filter(scene => scene !== 'together')

/** A receiver in this process, with its answers changed. */
const serve = async (
  change: (request: DeliveryRequest, receive: (request: DeliveryRequest) => Promise<Answer>) => Promise<Answer>,
  handler: () => unknown = () => {},
) => {
  const port = await freePort()
  const url = `http://127.0.0.1:${port}/hooks`
  const receiver = createReceiver({ issuer, audience: url, onRefused: () => {} }).otherwise(handler)
  const server = createServer(
    expressReceiver({ receive: request => change(request, it => receiver.receive(it)) }),
  ).listen(port, '127.0.0.1')
  await once(server, 'listening')
  after(() => server.close().closeAllConnections())
  return url
}

test('a receiver that keeps its word passes, and each request is graded', async () => {
  const { code, told } = await rehearsed(await serve((request, receive) => receive(request)))
  assert.deepEqual(problemsOf(told), [])
  assert.equal(code, 0)
  assert.equal(told.ok, true)
  // The receiver was not told its webhook's id.
  const notes = told.checks.filter(({ status }) => status === 'note').map(({ scene }) => scene)
  assert.deepEqual(notes, ['other_webhook'])
  assert.equal(told.passed, told.checks.length - 1)
})

test('people get a table with what to mend, and exit code 6', async () => {
  const receiver = await startReceiver()
  after(() => receiver.close())
  const made = await tidings(['webhooks', 'create', receiver.url, '--output', 'json'], { home })
  const { id } = JSON.parse(made.stdout)
  const { code, stdout, stderr } = await tidings(['rehearse', id, '--output', 'table'], { home })
  assert.equal(code, 6)
  assert.match(stdout, /Must be taken\n✓ ping +answered 200\n/)
  assert.match(stdout, /✗ signature of something else +let in: all \d+\n +→ Verify the signature/)
  assert.match(stderr, /The receiver has failed \d+ of \d+: no token after Bearer, /)
})

test('a receiver that handles what comes at once more than once is found', async () => {
  const url = await serve(
    async (request, receive) => {
      const answer = await receive(request)
      return answer.fault === 'in_progress' ? { ...answer, status: 200 } : answer
    },
    () => setTimeout(20),
  )
  const { code, told } = await rehearsed(url)
  assert.deepEqual(problemsOf(told), ['together'])
  assert.equal(code, 6)
})

test('a receiver that takes one vector wrongly has it named', async () => {
  const url = await serve(async (request, receive) => {
    const answer = await receive(request)
    const claims = request.authorization?.split('.')[1] ?? ''
    const { body_sha256: digest } = claims.startsWith('eyJ') ? readable(claims) : {}
    // Of a whole digest: a short prefix may have capitals alone by chance.
    const isUpper = typeof digest === 'string' && digest.length > 40 && digest === digest.toUpperCase()
    return isUpper && !/^A+$/.test(digest) ? { ...answer, status: 200 } : answer
  })
  const { code, told } = await rehearsed(url)
  assert.equal(code, 6)
  assert.deepEqual(problemsOf(told), ['other_body'])
  const { found } = told.checks.find(({ scene }) => scene === 'other_body')!
  assert.match(found, /^let in: 1 of 15: a body_sha256 in capitals$/)
})

test('nothing more is sent of a scene whose webhook is disabled meanwhile', async () => {
  let disable = async (): Promise<unknown> => undefined
  let requests = 0
  const url = await serve(async (request, receive) => {
    requests += 1
    await disable()
    return receive(request)
  })
  const { id } = JSON.parse((await tidings(['webhooks', 'create', url, '--output', 'json'], { home })).stdout)
  requests = 0
  let disabling: Promise<unknown> | undefined
  disable = () => {
    disabling ??= tidings(['webhooks', 'disable', id, '--yes'], { home })
    return disabling
  }
  const malformed = `mutation { rehearse(webhookId: "${id}", scene: malformed) { statusCode } }`
  const { code, stderr } = await tidings(['graphql', malformed], { home })
  assert.equal(code, 1)
  assert.match(stderr, /The webhook is disabled/)
  // Those that were under way.
  assert.equal(requests, 2)
})

test('what was not sent is told as such, and what a rehearsal cannot see is said', async () => {
  const answer = { delivery: 0, eventType: 'x', vector: 'a token', isAdvisable: false, statusCode: 401 }
  const silent = { failure: null, detail: null, challenge: null, durationMs: 9_000 }
  const left = { ...answer, ...silent, statusCode: null, failure: 'not_sent', detail: 'It took 20 s' }
  const { status, found } = scenes.malformed.judge([{ ...answer, ...silent }, left, left])
  assert.deepEqual([status, found], ['note', '2 of 3 were not sent: It took 20 s'])
  assert.match(unseen.join('\n'), /A claim that is missing/)
})

test('a receiver that keeps a delivery claimed whose sender has hung up is told of', async () => {
  const stuck = new Set<string>()
  const url = await serve(async (request, receive) => {
    const body = await (request.body as () => Promise<Uint8Array>)().catch(() => new Uint8Array())
    const id = /"eventId":"([^"]+)/.exec(Buffer.from(body).toString())?.[1] ?? ''
    await setTimeout(50)
    if (request.isAnswered?.()) stuck.add(id)
    return stuck.has(id) ? { status: 503, headers: {}, body: '' } : receive({ ...request, body })
  })
  const { code, told } = await rehearsed(url)
  const { status, found, next } = told.checks.find(({ scene }) => scene === 'lost_answer')!
  assert.deepEqual([status, found], ['note', 'answered 503, then answered 503'])
  assert.match(next!, /release the claim/)
  assert.equal(code, 0)
})

test('a receiver that needs 14 s is told to answer in time', () => {
  const answer = {
    ...{ delivery: 0, vector: null, isAdvisable: false },
    ...{ eventType: 'x', statusCode: 503, failure: null, detail: null, challenge: null, durationMs: 14_003 },
  }
  for (const scene of ['examples', 'replay', 'refused_first'] as const) {
    const { status, next } = scenes[scene].judge([answer])
    assert.equal(status, 'problem')
    assert.match(next!, /^Answer within 15 s/)
  }
})

test('a webhook that is unknown or not active is not rehearsed', async () => {
  const unknown = await tidings(['rehearse', '01930000-0000-7000-8000-000000000001'], { home })
  assert.equal(unknown.code, 3)
})

describe('a receiver with one fault in Node', () => {
  const alter = (answer: Answer, changed: Partial<Answer>): Answer => ({ ...answer, ...changed })
  const read = async (request: DeliveryRequest) => {
    const reading = (request.body as () => Promise<Uint8Array>)()
    reading.catch(() => {})
    return { body: () => reading, text: Buffer.from(await reading.catch(() => new Uint8Array())).toString() }
  }
  const faults: [fault: string, expected: string[], serve: Parameters<typeof serve>[0]][] = [
    [
      'that answers every refusal 500',
      [],
      async (request, receive) => {
        const answer = await receive(request)
        return answer.status === 401 ? alter(answer, { status: 500 }) : answer
      },
    ],
    [
      'that acknowledges replays',
      ['replay', 'retry'],
      async (request, receive) => {
        const answer = await receive(request)
        return answer.fault === 'replay' || answer.fault === 'in_progress' ? alter(answer, { status: 200 }) : answer
      },
    ],
    [
      'that refuses unknown types',
      ['unknown_type'],
      async (request, receive) => {
        const { text, body } = await read(request)
        const isUnknown = /rehearsal_of_tomorrow/.test(text)
        const answer = await receive({ ...request, body })
        return isUnknown ? alter(answer, { status: 400 }) : answer
      },
    ],
    [
      'that answers a ping 204',
      ['ping'],
      async (request, receive) => {
        const { text, body } = await read(request)
        const isPing = /"eventType":"ping"/.test(text) && pings++ > 0
        const answer = await receive({ ...request, body })
        return isPing ? alter(answer, { status: 204 }) : answer
      },
    ],
  ]
  let pings = 0
  for (const [fault, expected, change] of everyNth(3, faults)) {
    test(`${fault} is found`, async () => {
      const { code, told } = await rehearsed(await serve(change))
      assert.equal(code, 6)
      if (expected.length > 0) assert.deepEqual(certainProblemsOf(told), expected)
      else assert.ok(problemsOf(told).length > 10, JSON.stringify(told))
      assert.ok(told.checks.every(({ status, next }) => (status === 'ok') === (next === null)))
    })
  }
})

/** Receivers of the examples, each with one line that was changed. */
const variants: [
  language: string,
  file: string,
  faults: [what: string, from: string, to: string, expected: string[]][],
][] = [
  [
    'python',
    'tidings_receiver.py',
    [
      ['takes any audience', 'if claims.get("aud") != self._audience:', 'if False:', ['other_audience']],
      [
        'takes any body with an empty digest',
        'if "body_sha256" in claims:',
        'if claims.get("body_sha256"):',
        ['other_body'],
      ],
      [
        'takes a key that the kid does not name',
        'kid = header.get("kid")',
        'self._keys.get(header.get("kid")); kid = next(iter(self._keys._set[0]), None)',
        ['unknown_key'],
      ],
      [
        'judges an event by its time',
        'now = self._now()\n        if claims',
        'now = self._now()\n        if time.strftime("%Y-%m-%d", time.gmtime()) not in str(body):\n' +
          '            raise Refused("expiry")\n        if claims',
        ['late', 'incomplete_body'],
      ],
      ['takes replays', 'if status != "claimed":', 'if status == "in_progress":', ['replay', 'retry']],
    ],
  ],
  [
    'go',
    'tidings/receiver.go',
    [
      ['verifies no signature', ' || !ed25519.Verify(key, []byte(token[:dot]), signature)', '', ['wrong_signature']],
      ['takes expired tokens', '!hasExp || now >= exp ||', '!hasExp ||', ['expired']],
      ['takes any issuer', 'claims["iss"] != r.options.Issuer', 'false', ['other_issuer']],
      ['takes extensions', 'if hasCrit ||', 'if hasCrit && false ||', ['malformed']],
    ],
  ],
  [
    'ruby',
    'tidings_receiver.rb',
    [
      ['compares no event', " && event && event['eventId'] == jti", ' && event', ['other_event']],
      ['looks for Bearer anywhere', '/\\ABearer +', '/Bearer +', ['no_token']],
      ['allows clocks 5 s apart at most', 'TOLERANCE = 60', 'TOLERANCE = 5', ['clock_ahead']],
    ],
  ],
]

const has = (program: string): boolean => spawnSync(program, ['--version'], { stdio: 'ignore' }).status !== null
const programs: Record<string, { lacks: boolean; start: (at: string) => [string, ...string[]] }> = {
  python: {
    lacks: spawnSync('python3', ['-c', 'import cryptography'], { stdio: 'ignore' }).status !== 0,
    start: () => ['python3', 'main.py'],
  },
  go: {
    lacks: spawnSync('go', ['version'], { stdio: 'ignore' }).status !== 0,
    start: at => [path.join(at, 'receiver')],
  },
  ruby: { lacks: !has('ruby'), start: () => ['ruby', 'main.rb'] },
}

// By day one language, whose receivers are graded without a fault and with one.
for (const [language, file, faults] of atFullSize(
  variants,
  variants.slice(0, 1).map(([language, file, faults]) => [language, file, faults.slice(0, 1)]),
)) {
  const { lacks, start } = programs[language]!
  describe(`a receiver in ${language}`, { skip: lacks && `there is no ${language} on this machine` }, () => {
    for (const [what, from, to, expected] of [['has no fault', '', '', [] as string[]] as const, ...faults]) {
      test(`that ${what} is graded so`, { timeout: 300_000 }, async () => {
        const at = path.join(folder, `${language}-${what.replaceAll(' ', '-')}`)
        await cp(path.join(repository, 'examples', language), at, { recursive: true })
        const source = await readFile(path.join(at, file), 'utf8')
        assert.ok(source.includes(from), `${file} has no ${from}`)
        await writeFile(
          path.join(at, file),
          source.replace(from, () => to),
        )
        if (language === 'go') {
          // What a fault leaves unused is no error.
          const built = await run('go', ['build', '-gcflags=-e', '-o', 'receiver', '.'], { cwd: at })
          assert.equal(built.code, 0, built.stderr)
        }
        const port = await freePort()
        const url = `http://127.0.0.1:${port}/hooks`
        const [program, ...args] = start(at)
        const env = { ...process.env, PYTHONDONTWRITEBYTECODE: '1', PORT: `${port}`, ISSUER: issuer, AUDIENCE: url }
        const child: ChildProcess = spawn(program, args, { cwd: at, env, stdio: 'ignore' })
        try {
          const { code, told, stderr } = await rehearsed(url)
          assert.deepEqual(certainProblemsOf(told), expected, stderr)
          assert.equal(code, expected.length === 0 ? 0 : 6)
        } finally {
          if (child.kill('SIGKILL')) await once(child, 'exit')
        }
      })
    }
  })
}
