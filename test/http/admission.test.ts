import assert from 'node:assert/strict'
import { beforeEach, mock, test } from 'node:test'
import { admit } from '../../server/http/admission.ts'

const AT_ONCE = 64

/** Requests by the order they came: in work until `finish` is called, and what each was answered. */
const start = ({ isBusy = false } = {}) => {
  let time = 0
  const admission = admit({ now: () => time, isBusy: () => isBusy })
  const begun: number[] = []
  const finishing: (() => void)[] = []
  const answers: { status?: number; code?: unknown; retryAfter?: string }[] = []
  const turn = () => new Promise(resolve => setImmediate(resolve))
  let asked = 0
  const ask = async (count: number): Promise<void> => {
    for (let n = 0; n < count; n++) {
      const id = asked++
      const ctx = {
        state: { requestId: '', arrivedAt: time },
        accepts: (...types: string[]) => types[0],
        set: (name: string, value: string) =>
          name === 'Retry-After' && Object.assign(answers[id]!, { retryAfter: value }),
      }
      answers[id] = {}
      const next = () =>
        new Promise<void>(resolve => {
          begun.push(id)
          finishing[id] = () => {
            answers[id] = { status: 200 }
            resolve()
          }
        })
      void admission(ctx as unknown as Parameters<typeof admission>[0], next)?.then(() => {
        const { status, body } = ctx as unknown as { status?: number; body?: { errors: { extensions: object }[] } }
        if (status) Object.assign(answers[id]!, { status, ...body!.errors[0]!.extensions })
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
  return { ask, finish, pass, begun, answers }
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

test('what finds no place is refused within a second, and told when to come again', async () => {
  const { ask, pass, finish, begun, answers } = start()
  await ask(400)
  await pass(249)
  assert.equal(begun.length, AT_ONCE)
  await pass(1)
  assert.equal(begun.length, 2 * AT_ONCE)
  await pass(250)
  await pass(200)
  const refused = answers.slice(3 * AT_ONCE)
  assert.equal(begun.length, 3 * AT_ONCE)
  for (const { status, code, retryAfter } of refused) {
    assert.deepEqual([status, code, retryAfter], [503, 'UNAVAILABLE', '1'])
  }
  await finish(0)
  assert.equal(begun.length, 3 * AT_ONCE, 'what was refused is not begun')
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
  await pass(800)
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
  await pass(200)
  assert.equal(answers[AT_ONCE]!.status, 503)
  for (let ms = 700; ms <= 2_250; ms += 250) await pass(250)
  await ask(1)
  assert.equal(begun.length, AT_ONCE + 1)
})
