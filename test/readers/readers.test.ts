import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { it } from 'node:test'
import { setTimeout as wait } from 'node:timers/promises'
import type { Database } from '../../server/database/connect.ts'
import type { AccessToken } from '../../server/domain/permissions.ts'
import { createLog } from '../../server/log.ts'
import type { Heard, Queries, Start } from '../../server/readers/child.ts'
import type { ToReader } from '../../server/readers/messages.ts'
import { Readers } from '../../server/readers/readers.ts'
import { testClock } from '../support/clock.ts'
import { migratedDatabase } from '../support/databases.ts'
import { eventually, PATIENCE_MS } from '../support/eventually.ts'

/** A reader that answers when it is told to. */
class Scripted implements Queries {
  isReady = false
  starvedMs = 0
  /** The ids of what it was asked and has not answered. */
  readonly asked = new Set<number>()
  /** How many it was told to end. */
  putBack = 0
  readonly #heard: Heard
  readonly #begun: string[]

  constructor(heard: Heard, begun: string[], isReady = true) {
    this.#heard = heard
    this.#begun = begun
    if (isReady) setImmediate(() => this.becomeReady())
  }

  becomeReady(): void {
    this.isReady = true
    this.#heard.ready()
  }

  send(message: ToReader): void {
    if (message.kind === 'ask') {
      this.asked.add(message.id)
      this.#begun.push(message.request.token.id)
    }
    if (message.kind === 'gone') this.putBack += 1
  }

  answerAll(costMs = 1): void {
    for (const id of this.asked) this.answer(id, costMs)
  }

  answer(id: number, costMs: number): void {
    this.asked.delete(id)
    const answer = { kind: 'answer', id, status: 200, headers: {}, codes: new Set(), operation: undefined } as const
    this.#heard.message({ ...answer, body: Buffer.from('{}'), costMs })
  }

  /** What it was asked has spent more than a small query does. */
  tellLarge(): void {
    for (const id of this.asked) this.#heard.message({ kind: 'large', id })
  }

  end(): void {
    this.#heard.ended({ isKilled: false, wasReady: true, said: Promise.resolve(undefined) })
  }

  async receive(): Promise<Uint8Array[]> {
    return []
  }

  kill(): void {}
}

const termsOf = (giveUpAt: number) => ({ now: 0, giveUpAt, gone: new AbortController().signal })
const requestOf = (token: AccessToken) =>
  ({ url: '', method: 'POST', headers: {}, body: '', token, requestId: randomUUID() }) as const
const tokenOf = (id: string, seesAllOrganisations: boolean) => ({ id, seesAllOrganisations }) as AccessToken
const none = { onReplaced() {}, onEnded() {} }

/** They look at what runs every 10 ms, by timers that are real. */
const A_LOOK_MS = 25

/** Longer than a light query takes, and shorter than what makes one heavy. */
const LONG_MS = 300

/** Readers that are ready, of a database server, so that each has several places. Their clock stands still. */
const startReaders = async (mayBeReady: () => boolean = () => true) => {
  const given = await migratedDatabase('sqlite')
  const database: Database = { ...given.database, dialect: { ...given.database.dialect, isEmbedded: false } }
  const started: Scripted[] = []
  const told: Start[] = []
  /** Whose queries have begun, in their order. */
  const begun: string[] = []
  const start = (given: Start, heard: Heard) => {
    told.push(given)
    started.push(new Scripted(heard, begun, mayBeReady()))
    return started.at(-1)!
  }
  const clock = testClock()
  const readers = new Readers('', database, createLog('silent'), none, { now: clock.now, pairMs: 0, start })
  const ask = (token: AccessToken) => readers.ask(requestOf(token), termsOf(clock.now() + PATIENCE_MS))
  /** How many of these each reader is asked at once, if it is asked any; they are answered then. */
  const placesOf = async (tokens: AccessToken[], costMs?: number) => {
    const answers = tokens.map(ask)
    const askedOf = () => started.map(({ asked }) => asked.size)
    await eventually('all to be asked', askedOf, counts => counts.reduce((a, b) => a + b, 0) === tokens.length)
    const places = askedOf().filter(count => count > 0)
    for (const one of started) one.answerAll(costMs)
    await Promise.all(answers)
    return places
  }
  /** Answers whatever is asked until all of these have their answers. */
  const answerAll = async (answers: Promise<unknown>[]) => {
    const answering = setInterval(() => {
      for (const one of started) one.answerAll()
    }, 10)
    await Promise.all(answers)
    clearInterval(answering)
  }
  /** Time passes in which others have the processor: nothing that runs is long for that. */
  const starve = (ms: number) => {
    clock.advance(ms)
    for (const one of started) one.starvedMs += ms
  }
  const stop = async () => {
    readers.stop()
    await given.drop()
  }
  return { readers, clock, starve, started, told, begun, ask, placesOf, answerAll, stop }
}

it('a query may take 15 s', async () => {
  const { told, placesOf, stop } = await startReaders()
  try {
    await placesOf([tokenOf('first', true)])
    assert.deepEqual([...new Set(told.map(({ timeMs }) => timeMs))], [15_000])
  } finally {
    await stop()
  }
})

it('what runs when the readers are stopped is refused, and looked at no more', async () => {
  const { readers, started, ask, placesOf, stop } = await startReaders()
  const both = [tokenOf('first', true), tokenOf('second', true)]
  try {
    // Until they are known: what is not light is not looked at for whether it can move.
    for (let n = 0; n < 20; n++) for (const token of both) await placesOf([token])
    const answers = Promise.all(
      both.map(token => assert.rejects(ask(token), { code: 'UNAVAILABLE', message: /is restarting/ })),
    )
    const asked = () => started.reduce((count, { asked }) => count + asked.size, 0)
    await eventually('both to be asked', asked, count => count === 2)
    readers.stop()
    for (const one of started) one.end()
    await wait(A_LOOK_MS)
    await answers
  } finally {
    await stop()
  }
})

it('a tenant leaves a reader to others while others ask, and has all of them while it asks alone', async () => {
  const { placesOf, stop } = await startReaders()
  const both = [tokenOf('first', true), tokenOf('second', true)]
  try {
    // Until they are known, and two readers have begun what is slow in a new one.
    for (let n = 0; n < 20; n++) for (const token of both) await placesOf([token])
    assert.deepEqual(await placesOf(both), [1, 1])
    await placesOf([tokenOf('other', false)])
    assert.deepEqual(await placesOf(both), [2])
  } finally {
    await stop()
  }
})

for (const isStarved of [false, true]) {
  const has = isStarved ? 'shares it where others had the processor' : 'has it for itself'
  it(`what has run for long in a reader ${has}, before it is known to be heavy`, async () => {
    const { clock, starve, started, ask, placesOf, stop } = await startReaders()
    const tokens = ['first', 'second', 'third'].map(id => tokenOf(id, false))
    try {
      for (let n = 0; n < 20; n++) for (const token of tokens) await placesOf([token])
      const [first, ...others] = tokens
      const answers = [ask(first!)]
      await eventually('it to be asked', () => started.some(({ asked }) => asked.size > 0), Boolean)
      if (isStarved) starve(LONG_MS)
      else clock.advance(LONG_MS)
      answers.push(...others.map(ask))
      const askedOf = () => started.map(({ asked }) => asked.size).sort()
      assert.deepEqual(await eventually('all to be asked', askedOf, ([a, b]) => a! + b! === 3), [1, 2])
      const ofFirst = started.find(({ asked }) => asked.has(Math.min(...started.flatMap(each => [...each.asked]))))!
      assert.equal(ofFirst.asked.size, isStarved ? 2 : 1)
      for (const one of started) one.answerAll()
      await Promise.all(answers)
    } finally {
      await stop()
    }
  })
}

it('queries that have every place are put back sooner while others wait for one, and large ones at once', async () => {
  const { clock, started, ask, placesOf, answerAll, stop } = await startReaders()
  const PLACES = 4
  const crowd = async (name: string, count: number) => {
    const tokens = Array.from({ length: count }, (_, n) => tokenOf(`${name} ${n}`, false))
    for (let n = 0; n < 4; n++) for (const token of tokens) await placesOf([token])
    return tokens
  }
  /** How long these run until the first is put back. */
  const untilPutBack = async (some: AccessToken[], { areLarge = false } = {}) => {
    const putBack = () => started.reduce((sum, one) => sum + one.putBack, 0)
    const before = putBack()
    const answers = some.map(ask)
    await eventually('all places to be taken', () => started.every(({ asked }) => asked.size === PLACES / 2), Boolean)
    if (areLarge) for (const one of started) one.tellLarge()
    const begunAt = clock.now()
    await wait(A_LOOK_MS)
    while (putBack() === before && clock.now() < begunAt + 5_000) {
      clock.advance(50)
      await wait(A_LOOK_MS)
    }
    const ms = clock.now() - begunAt
    await answerAll(answers)
    return ms
  }
  try {
    const awaited = await untilPutBack(await crowd('awaited', PLACES + 1))
    const large = await untilPutBack(await crowd('large', PLACES + 1), { areLarge: true })
    const alone = await untilPutBack(await crowd('alone', PLACES), { areLarge: true })
    assert.deepEqual({ awaited, large, alone }, { awaited: 300, large: 0, alone: 1_050 })
  } finally {
    await stop()
  }
})

for (const [waitedMs, comes] of [
  [2_001, 'is in turn'],
  [1_999, 'comes after it'],
] as const) {
  it(`a query of a new token that has waited ${waitedMs} ms for a light one ${comes}`, async () => {
    const { starve, started, begun, ask, placesOf, answerAll, stop } = await startReaders()
    const light = Array.from({ length: 9 }, (_, n) => tokenOf(`light ${n}`, true))
    try {
      for (let n = 0; n < 4; n++) for (const token of light) await placesOf([token])
      begun.length = 0
      const answers = light.slice(1).map(ask)
      await eventually('all places to be taken', () => started.every(({ asked }) => asked.size === 4), Boolean)
      answers.push(ask(tokenOf('new', true)), ask(light[0]!))
      await wait(1)
      starve(waitedMs)
      const [oldest] = started[0]!.asked
      started[0]!.answer(oldest!, 1)
      assert.equal(begun[8], comes === 'is in turn' ? 'new' : 'light 0')
      await answerAll(answers)
    } finally {
      await stop()
    }
  })
}

it('a query of a new token that has waited for light ones has no claim on all the time that these had', async () => {
  /** Half of the places: as many begin at once where none is light. */
  const AT_ONCE = 4
  const { starve, started, begun, ask, placesOf, answerAll, stop } = await startReaders()
  const light = Array.from({ length: 4 }, (_, n) => tokenOf(`light ${n}`, true))
  const answerOne = () => {
    const [busiest] = started.toSorted((a, b) => b.asked.size - a.asked.size)
    busiest!.answer(busiest!.asked.values().next().value!, 1)
  }
  try {
    for (let n = 0; n < 4; n++) for (const token of light) await placesOf([token])
    begun.length = 0
    const answers = Array.from({ length: 100 }, () => light.map(ask)).flat()
    await eventually('all places to be taken', () => started.every(({ asked }) => asked.size === 4), Boolean)
    answers.push(...Array.from({ length: 3 * AT_ONCE }, () => ask(tokenOf('new', true))))
    await wait(1)
    for (let n = 0; n < 300; n++) {
      starve(8)
      answerOne()
    }
    const first = begun.indexOf('new')
    assert.ok(first >= 250, `after ${first} light ones`)
    const then = begun.slice(first + AT_ONCE, first + AT_ONCE + light.length)
    assert.deepEqual(then.toSorted(), light.map(({ id }) => id).toSorted(), begun.slice(first).join())
    await answerAll(answers)
  } finally {
    await stop()
  }
})

it('what is large stays where another reader is left to small queries, and so do these', async () => {
  const { started, ask, placesOf, answerAll, stop } = await startReaders()
  const tokens = Array.from({ length: 5 }, (_, n) => tokenOf(`${n}`, false))
  try {
    for (let n = 0; n < 4; n++) for (const token of tokens) await placesOf([token])
    const answers = tokens.slice(0, 4).map(ask)
    await eventually('all places to be taken', () => started.every(({ asked }) => asked.size === 2), Boolean)
    started[0]!.tellLarge()
    answers.push(ask(tokens[4]!))
    await wait(60)
    assert.deepEqual(
      started.map(({ putBack }) => putBack),
      [0, 0],
    )
    await answerAll(answers)
  } finally {
    await stop()
  }
})

const [little, much, other] = [tokenOf('little', true), tokenOf('much', true), tokenOf('other', false)]

/** The second of two readers is left, `light` are known to be light, and a token of the operator's asks much. */
const startWithOneLeft = async (light: AccessToken[]) => {
  let mayBeReady = true
  const given = await startReaders(() => mayBeReady)
  for (let n = 0; n < 20; n++) for (const token of light) await given.placesOf([token])
  for (let n = 0; n < 3; n++) await given.placesOf([much], 1_000)
  mayBeReady = false
  given.started[0]!.end()
  return given
}

it('while one reader is left, a tenant that asks alone has a place in it by each token that asks little', async () => {
  const { started, ask, stop } = await startWithOneLeft([little, tokenOf('second', true)])
  try {
    const answer = ask(little)
    await eventually(
      'it to be asked',
      () => started[1]!.asked.size,
      count => count > 0,
    )
    started[1]!.answerAll()
    await answer
  } finally {
    await stop()
  }
})

it('while one reader is left, a tenant that asks much has no place in it by a token that asks little', async () => {
  const { clock, started, ask, stop } = await startWithOneLeft([little, other])
  try {
    const answers = [ask(little), ask(other)]
    const asked = () => started[1]!.asked.size
    await eventually('one to be asked', asked, count => count > 0)
    assert.equal(asked(), 1)
    started[1]!.answerAll()
    await answers[1]
    assert.equal(asked(), 0, 'the token that asks little waits for the reader that starts')
    clock.advance(100)
    const third = await eventually(
      'it to start',
      () => started[2],
      reader => reader !== undefined,
    )
    third!.becomeReady()
    await eventually(
      'it to be asked',
      () => third!.asked.size,
      count => count === 1,
    )
    third!.answerAll()
    await answers[0]
  } finally {
    await stop()
  }
})

it('a query whose time was up, since its process stood still, is refused without a warning', async () => {
  const given = await migratedDatabase('sqlite')
  const start = (_given: unknown, heard: Heard) => new Scripted(heard, [], false)
  const readers = new Readers('', given.database, createLog('silent'), none, { start })
  const warned: string[] = []
  const hear = ({ name }: Error) => void warned.push(name)
  process.on('warning', hear)
  try {
    await assert.rejects(readers.ask(requestOf(tokenOf('first', true)), termsOf(performance.now() - 20_000)), {
      code: 'UNAVAILABLE',
    })
    await new Promise(resolve => setImmediate(resolve))
    assert.deepEqual(warned, [])
  } finally {
    process.off('warning', hear)
    readers.stop()
    await given.drop()
  }
})
