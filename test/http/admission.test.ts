import assert from 'node:assert/strict'
import { beforeEach, mock, test } from 'node:test'
import { Admission } from '../../server/http/admission.ts'

const AT_ONCE = 64

/** Requests by the order they came: in work until `finish` is called, and what each was answered. */
const start = ({ isBusy = false } = {}) => {
  let time = 0
  const { refuseHopeless, admit } = new Admission({ now: () => time, isBusy: () => isBusy })
  const begun: number[] = []
  const finishing: (() => void)[] = []
  const leaving: (() => void)[] = []
  const answers: { status?: number; code?: unknown; retryAfter?: string }[] = []
  const turn = () => new Promise(resolve => setImmediate(resolve))
  let asked = 0
  const ask = async (count: number, { arrivedAt = time, apiKey = 'one' } = {}): Promise<void> => {
    for (let n = 0; n < count; n++) {
      const id = asked++
      const ctx = {
        state: { requestId: '', arrivedAt, apiKey },
        accepts: (...types: string[]) => types[0],
        set: (name: string, value: string) =>
          name === 'Retry-After' && Object.assign(answers[id]!, { retryAfter: value }),
      }
      answers[id] = {}
      const next = () =>
        new Promise<void>(resolve => {
          begun.push(id)
          leaving[id] = (ctx.state as { leavePlace?: () => void }).leavePlace!
          finishing[id] = () => {
            answers[id] = { status: 200 }
            resolve()
          }
        })
      const given = ctx as unknown as Parameters<typeof admit>[0]
      void Promise.resolve(refuseHopeless(given, () => admit(given, next))).then(() => {
        const { status, body } = ctx as unknown as { status?: number; body?: string }
        if (status) Object.assign(answers[id]!, { status, ...JSON.parse(body!).errors[0].extensions })
      })
    }
    await turn()
  }
  const finish = async (id: number): Promise<void> => {
    finishing[id]!()
    await turn()
  }
  const pass = async (ms: number): Promise<void> => {
    time += ms
    mock.timers.tick(ms)
    await turn()
  }
  const leave = async (id: number): Promise<void> => {
    leaving[id]!()
    await turn()
  }
  return { ask, finish, leave, pass, begun, answers }
}

beforeEach(t => {
  mock.timers.enable({ apis: ['setTimeout'] })
  if ('after' in t) t.after(() => mock.timers.reset())
})

test('what waits for its turn begins in the order it came', async () => {
  const { ask, finish, begun } = start()
  await ask(AT_ONCE + 3)
  assert.equal(begun.length, AT_ONCE)
  for (const id of [7, 3, 5]) await finish(id)
  assert.deepEqual(begun.slice(AT_ONCE), [AT_ONCE, AT_ONCE + 1, AT_ONCE + 2])
})

test('what finds no place within a second is refused, and told when to come again', async () => {
  const { ask, pass, finish, begun, answers } = start()
  await ask(400)
  await pass(249)
  assert.equal(begun.length, AT_ONCE)
  await pass(1)
  assert.equal(begun.length, 2 * AT_ONCE)
  for (let ms = 250; ms < 750; ms += 250) await pass(250)
  assert.equal(begun.length, 4 * AT_ONCE)
  await pass(49)
  assert.ok(answers.every(({ status }) => status === undefined))
  await pass(1)
  const refused = answers.slice(4 * AT_ONCE)
  assert.ok(refused.length > 0)
  assert.equal(begun.length, 4 * AT_ONCE)
  for (const { status, code, retryAfter } of refused) {
    assert.deepEqual([status, code, retryAfter], [503, 'UNAVAILABLE', '1'])
  }
  await finish(0)
  assert.equal(begun.length, 4 * AT_ONCE, 'what was refused is not begun')
})

test('what says that it only waits gives its place to another at once, and only one', async () => {
  const { ask, finish, leave, begun } = start({ isBusy: true })
  await ask(AT_ONCE + 2)
  await leave(5)
  assert.deepEqual(begun.slice(AT_ONCE), [AT_ONCE])
  await leave(5)
  await finish(5)
  assert.equal(begun.length, AT_ONCE + 1)
})

test('what waits for something itself is in nobody’s way', async () => {
  const { ask, pass, begun } = start()
  await ask(AT_ONCE)
  await pass(250)
  await ask(1)
  assert.equal(begun.length, AT_ONCE + 1)
})

test('a timer that is late lets nothing in that has waited for too long', async () => {
  const { ask, finish, pass, begun, answers } = start()
  await ask(AT_ONCE + 1)
  mock.timers.reset()
  mock.timers.enable({ apis: ['setTimeout'] })
  await pass(1_000)
  await finish(0)
  assert.equal(begun.length, AT_ONCE)
  assert.equal(answers[AT_ONCE]!.status, 503)
})

test('what is slow since this process is busy stays in the way of others, for two seconds at most', async () => {
  const { ask, pass, begun, answers } = start({ isBusy: true })
  await ask(AT_ONCE + 1)
  await pass(250)
  await pass(250)
  assert.equal(begun.length, AT_ONCE)
  await pass(700)
  assert.equal(answers[AT_ONCE]!.status, 503)
  for (let ms = 1_200; ms <= 2_250; ms += 250) await pass(250)
  await ask(1)
  assert.equal(begun.length, AT_ONCE + 1)
})

test('what has waited while the process stood still begins if nothing is before it', async () => {
  const { ask, pass, begun } = start()
  await pass(2_000)
  await ask(1, { arrivedAt: 0 })
  assert.deepEqual(begun, [0])
})

test('a crowd after a quiet time waits for its turn', async () => {
  const { ask, pass, finish, begun, answers } = start()
  for (let n = 0; n < 10; n++) {
    await ask(1)
    await finish(n)
    await pass(60_000)
  }
  await ask(10 * AT_ONCE)
  assert.ok(answers.slice(10).every(({ status }) => status === undefined))
  assert.equal(begun.length, 10 + AT_ONCE)
})

/** So many wait that, at their pace, one more would wait for 4 s: 20 begin in 200 ms, and 380 more wait. */
const crowd = async ({ ask, pass, finish }: ReturnType<typeof start>): Promise<void> => {
  await ask(AT_ONCE + 400)
  for (let n = 0; n < 20; n++) {
    await pass(10)
    await finish(n)
  }
}

test('what would wait for too long behind others is refused at once', async () => {
  const line = start({ isBusy: true })
  const { ask, begun, answers } = line
  await crowd(line)
  const before = answers.length
  await ask(1)
  assert.equal(answers[before]!.status, 503)
  assert.ok(!begun.includes(before))
})

/** Offers `perSecond` requests for `forMs` to a process that ends `pace` of them a second; returns those refused. */
const offer = async (
  { ask, pass, finish, begun, answers }: ReturnType<typeof start>,
  { perSecond, pace, forMs, apiKey = 'one' }: { perSecond: number; pace: number; forMs: number; apiKey?: string },
) => {
  const STEP_MS = 10
  const refusedAt = new Map<number, number>()
  const cameAt: number[] = []
  const waitedMs: number[] = []
  let ended = 0
  const isOver = () => answers.every(({ status }) => status !== undefined)
  for (let ms = 0, due = 0; ms < forMs || !isOver(); ms += STEP_MS, due += (pace * STEP_MS) / 1000) {
    const count = ms < forMs ? (perSecond * STEP_MS) / 1000 : 0
    for (let n = 0; n < count; n++) cameAt.push(ms)
    await ask(count, { apiKey })
    for (; ended < begun.length && due >= 1; due--) await finish(begun[ended++]!)
    if (ended === begun.length) due = 0
    for (let n = waitedMs.length; n < begun.length; n++) waitedMs.push(ms - cameAt[begun[n]!]!)
    await pass(STEP_MS)
    for (const [id, { status }] of answers.entries())
      if (status === 503 && !refusedAt.has(id)) refusedAt.set(id, ms + STEP_MS - cameAt[id]!)
  }
  return { refusedAfterMs: [...refusedAt.values()], taken: begun.length, waitedMs }
}

test('a burst of two seconds, of four thirds of what a process can take, is waited out', async () => {
  const { refusedAfterMs, taken } = await offer(start({ isBusy: true }), { perSecond: 800, pace: 600, forMs: 2_000 })
  assert.deepEqual([refusedAfterMs.length, taken], [0, 1_600])
})

test('of an overload that lasts, a process takes what it can and refuses the rest within 0.8 s', async () => {
  const overload = { perSecond: 900, pace: 300, forMs: 6_000 }
  const { refusedAfterMs, taken, waitedMs } = await offer(start({ isBusy: true }), overload)
  assert.ok(taken > 0.9 * 6 * 300 && taken < 2_600, `${taken} taken`)
  assert.ok(refusedAfterMs.length > 2_000)
  assert.ok(Math.max(...refusedAfterMs) <= 810)
  const soon = refusedAfterMs.filter(ms => ms <= 20).length
  assert.ok(Math.max(...waitedMs.slice(-600)) <= 650, 'once it is clear that it lasts, nobody waits for long')
  assert.ok(soon > 0.8 * refusedAfterMs.length, `${soon} of ${refusedAfterMs.length} at once`)
})

test('one API key does not take all the room for those that wait', async () => {
  const { ask, answers } = start()
  await ask(AT_ONCE + 3_000)
  await ask(1, { apiKey: 'other' })
  assert.equal(answers.filter(({ status }) => status === 503).length, 3_000 - 2_048)
  assert.equal(answers.at(-1)!.status, undefined)
})

test('of a key that has few under way, none waits for those of another, and then its next come in turn', async () => {
  const { ask, finish, begun } = start()
  await ask(AT_ONCE + 100)
  const first = AT_ONCE + 100
  await ask(4, { apiKey: 'other' })
  assert.deepEqual(begun.slice(AT_ONCE), [first, first + 1])
  await finish(first)
  assert.deepEqual(begun.slice(AT_ONCE + 2), [first + 2])
  for (const id of [0, 1, 2, 3]) await finish(id)
  assert.deepEqual(begun.slice(AT_ONCE + 3), [AT_ONCE, first + 3])
})

test('of a key that has few under way, one begins although the process stood still when it came', async () => {
  const line = start()
  const { ask, pass, begun, answers } = line
  await pass(5_000)
  await ask(AT_ONCE + 1)
  await ask(1, { apiKey: 'other', arrivedAt: 0 })
  assert.deepEqual([begun.length, answers.at(-1)], [AT_ONCE + 1, {}])
})

test('however many keys have few under way, no more than twice as many requests run at once', async () => {
  const { ask, begun } = start()
  for (let n = 0; n < 3 * AT_ONCE; n++) await ask(1, { apiKey: String(n) })
  assert.equal(begun.length, 2 * AT_ONCE)
})

test('what would wait for too long behind its own kind is refused, and another’s is not', async () => {
  const line = start({ isBusy: true })
  const { ask, answers } = line
  await crowd(line)
  const before = answers.length
  await ask(1)
  await ask(1, { apiKey: 'other' })
  assert.deepEqual([answers[before]!.status, answers[before + 1]!.status], [503, undefined])
})
