import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { EventEmitter, once } from 'node:events'
import { createServer, request as send } from 'node:http'
import { type AddressInfo, connect } from 'node:net'
import { json } from 'node:stream/consumers'
import { after, describe, type TestContext, test } from 'node:test'
import { setTimeout as delay } from 'node:timers/promises'
import { handleOnce } from '../../receiver/handling.ts'
import {
  createReceiver,
  expressReceiver,
  type Handled,
  learnedWebhook,
  memoryReplayStore,
  type ReceiverOptions,
  type Refusal,
  type TidingsEvent,
  verifyDelivery,
} from '../../receiver/index.ts'
import { remoteKeys } from '../../receiver/keys.ts'
import { checkOptions } from '../../receiver/options.ts'
import { durableObjectReplayStore, redisReplayStore, sqlReplayStore } from '../../receiver/stores/index.ts'
import { leastCpuMsOf } from '../support/effort.ts'
import { audience, startSender } from './sender.ts'

const sender = await startSender()
const options = { issuer: sender.issuer.url, audience }

const start = (more: Partial<ReceiverOptions> = {}) => {
  const told = {
    errors: [] as unknown[],
    eventIds: [] as unknown[],
    refusals: [] as Refusal[],
    handled: [] as Handled[],
  }
  const { receive } = createReceiver({
    ...options,
    onError: (error, { eventId }) => {
      told.errors.push(error)
      told.eventIds.push(eventId)
    },
    onRefused: refusal => told.refusals.push(refusal),
    onHandled: handled => told.handled.push(handled),
    ...more,
  })
  return { receive, ...told }
}

/** Soon out of time, and without a key set to fetch: that takes longer than so on a machine that has much to do. */
const IMPATIENT = { handlerTimeoutMs: 250, keys: sender.issuer.keys.map(key => ({ ...key })) }

/** Resolves once a condition holds. */
const until = async (what: string, holds: () => boolean): Promise<void> => {
  for (const endMs = Date.now() + 60_000; !holds(); await new Promise(resolve => setTimeout(resolve, 5))) {
    assert.ok(Date.now() < endMs, `${what}, which has not come about`)
  }
}

describe('an option that is wrong is refused at creation, and told', () => {
  const wrong: [options: object, says: RegExp][] = [
    [{ issuer: 'tidings.example' }, /^issuer is "tidings.example"/],
    [{ issuer: undefined }, /^issuer is undefined/],
    [{ audience: [] }, /^audience is \[\]/],
    [{ audience: ['https://a.example', 'b'] }, /^audience/],
    [{ keys: [] }, /^keys is \[\]/],
    [{ keys: {} }, /^keys/],
    [{ keys: [{ kty: 'RSA', kid: 'x' }] }, /^keys/],
    [{ keys: [{ kty: 'OKP', crv: 'Ed25519', x: 'AA', kid: 'x' }] }, /^keys/],
    [{ keys: 'keys.json' }, /^keys is "keys.json"/],
    [{ keys: 7 }, /^keys is 7/],
    [{ webhookId: '' }, /^webhookId/],
    [{ webhookId: [] }, /^webhookId/],
    [{ webhookId: [''] }, /^webhookId/],
    [{ webhookId: undefined }, /^webhookId is undefined/],
    [{ replayStore: {} }, /^replayStore/],
    [{ replayStore: { claim() {}, record() {} } }, /^replayStore/],
    [{ onError: 'log' }, /^onError/],
    [{ onRefused: 1 }, /^onRefused/],
    [{ now: 0 }, /^now is 0/],
    [{ handlerTimeoutMs: 0 }, /^handlerTimeoutMs/],
    [{ handlerTimeoutMs: Number.POSITIVE_INFINITY }, /^handlerTimeoutMs/],
    [{ handlerTimeoutMs: '14s' }, /^handlerTimeoutMs/],
    [{ dedupe: 'both' }, /^dedupe is "both"/],
    [{ replays: 'ignore' }, /^replays/],
    [{ webhookid: 'x' }, /^webhookid is no option; these are: issuer, audience/],
  ]
  for (const [given, says] of wrong) {
    test(JSON.stringify(given), () => {
      assert.throws(() => createReceiver({ ...options, ...given } as never), { name: 'TypeError', message: says })
    })
  }

  const makers: Record<string, [make: () => unknown, says: RegExp]> = {
    'no limit': [() => memoryReplayStore({ maxEntries: Number.NaN }), /^maxEntries/],
    'a limit of none': [() => memoryReplayStore({ maxEntries: 0 }), /^maxEntries is 0/],
    'no clock': [() => memoryReplayStore({ now: 5 as never }), /^now is 5/],
    'no client of Redis': [() => redisReplayStore({} as never), /^evalScript is \{\}/],
    'no prefix': [() => redisReplayStore(async () => '', { prefix: 7 as never }), /^prefix is 7/],
    'no knex': [() => sqlReplayStore(undefined as never), /^knex is undefined/],
    'no table': [() => sqlReplayStore(() => {}, { table: 'a b' }), /^table is "a b"/],
    'no clock of a table': [() => sqlReplayStore(() => {}, { now: 0 as never }), /^now is 0/],
    'no binding': [() => durableObjectReplayStore({} as never), /^namespace is \{\}/],
    'a misspelt limit': [() => memoryReplayStore({ maxEntires: 9 } as never), /^maxEntires is no option/],
    'a misspelt prefix': [() => redisReplayStore(async () => '', { prefx: 'x' } as never), /^prefx is no option/],
    'a misspelt table': [() => sqlReplayStore(() => {}, { tabel: 'x' } as never), /^tabel is no option/],
    'no keeper': [() => learnedWebhook({ load: () => 'x' } as never), /^keeper/],
  }
  for (const [what, [make, says]] of Object.entries(makers)) {
    test(`and so is ${what} of what is given as one`, () => assert.throws(make, { name: 'TypeError', message: says }))
  }

  test('and so is a handler that is none', () => {
    assert.throws(() => expressReceiver(options, undefined as never), TypeError)
    assert.throws(() => expressReceiver(createReceiver(options) as never), /end it with \.otherwise\(handler\)/)
    assert.throws(() => createReceiver(options).on('nothing' as never, () => {}), /nothing is no type/)
    const begun = createReceiver(options).on('token_expired', () => {})
    assert.throws(() => begun.on('token_expired' as never, () => {}), /a handler for token_expired already/)
  })
})

describe('whatever is thrown', () => {
  const thrown = [
    undefined,
    null,
    'text',
    7,
    new Error('no'),
    Object.freeze({ status: 404 }),
    Symbol('x'),
    new Proxy({}, {}),
  ]

  test('by a handler is answered 500, and the event comes again', async () => {
    for (const error of thrown) {
      const { receive, errors } = start()
      const request = await sender.request()
      const answer = await receive(request, () => {
        throw error
      })
      assert.equal(answer.status, 500)
      assert.equal(errors.length, 1)
      assert.equal((await receive(request, () => {})).status, 200)
    }
  })

  test('by what the owner is told with changes no answer', async () => {
    for (const error of thrown) {
      const throwing = () => {
        throw error
      }
      const rejecting = () => Promise.reject(error)
      for (const tell of [throwing, rejecting]) {
        const { receive } = createReceiver({ ...options, onError: tell, onRefused: tell, onHandled: tell })
        assert.equal((await receive(await sender.request(), () => {})).status, 200)
        assert.equal((await receive(await sender.request(), throwing)).status, 500)
        assert.equal((await receive({ authorization: 'Bearer x', body: '' }, () => {})).status, 401)
      }
    }
  })

  test('by a function among the options is a 5XX, and told', async () => {
    const failing = () => {
      throw new Error('the directory is away')
    }
    for (const [given, status, fault] of [
      [{ audience: failing }, 500, 'option_failed'],
      [{ webhookId: failing }, 500, 'option_failed'],
      [{ now: failing }, 500, 'option_failed'],
      [{ now: () => Number.NaN }, 500, 'option_failed'],
      [{ keys: failing }, 503, 'keys_unavailable'],
      [{ keys: () => [] }, 503, 'keys_unavailable'],
      [{ keys: () => undefined }, 503, 'keys_unavailable'],
      [{ replayStore: { claim: failing, record: failing, release: failing } }, 503, 'replay_store_unavailable'],
      [
        { replayStore: { claim: () => 'claimed', record: () => true, release: () => true } },
        503,
        'replay_store_unavailable',
      ],
    ] as const) {
      const { receive, errors } = start(given as never)
      const answer = await receive(await sender.request(), () => assert.fail('handled'))
      assert.deepEqual([answer.status, answer.fault], [status, fault])
      assert.equal(errors.length, 1)
    }
  })

  test('by a platform that will not wait is told, and changes no answer', async () => {
    const waitUntil = () => {
      throw new Error('the request is over')
    }
    const quick = start()
    const request = { ...(await sender.request()), waitUntil }
    const answer = await quick.receive(request, (_event, context) => context.waitUntil(Promise.resolve()))
    assert.equal(answer.status, 200)
    assert.match(String(quick.errors), /is over/)
    const slow = start(IMPATIENT)
    const { status } = await slow.receive(request, (_event, { signal }) => once(signal, 'abort'))
    assert.equal(status, 503)
    assert.match(String(slow.errors), /is over/)
  })

  test('by a response that something else has a hand in ends nothing', async t => {
    const told = t.mock.method(console, 'error', () => {})
    let destroyed = 0
    const response = {
      writeHead: () => {
        throw new Error('a hook failed')
      },
      end: () => {},
      destroy: () => (destroyed += 1),
    }
    const { authorization, body } = await sender.request()
    const request = { method: 'POST', headers: { authorization }, rawBody: body, on() {}, off() {}, pause() {} }
    await expressReceiver(options, () => {})(request, response)
    assert.deepEqual([destroyed, told.mock.callCount()], [1, 1])
  })

  test('while the body is read is a 503', async () => {
    const { receive } = start()
    const { authorization } = await sender.request()
    const body = () => Promise.reject(new Error('reset'))
    assert.equal((await receive({ authorization, body }, () => {})).fault, 'body_incomplete')
    assert.equal((await receive({ authorization, body: (() => 7) as never }, () => {})).status, 500)
  })
})

describe('a handler that is slow', () => {
  test('is answered for in time, told to stop, and counts when it ends well', async () => {
    const { receive, refusals, handled, errors } = start(IMPATIENT)
    const eventId = randomUUID()
    const going = Promise.withResolvers<void>()
    let signal: AbortSignal | undefined
    const request = await sender.request({ eventId })
    const answer = await receive(request, (_event, context) => {
      signal = context.signal
      return going.promise
    })
    assert.deepEqual([answer.status, answer.fault], [503, 'timeout'])
    assert.equal(signal!.aborted, true)
    assert.deepEqual([refusals[0]!.code, refusals[0]!.eventId], ['timeout', eventId])
    const before = errors.length
    assert.equal((await receive(request, () => assert.fail('twice'))).fault, 'in_progress')
    assert.equal(errors.length, before, 'nothing has failed')
    going.resolve()
    await until('the late end counts', () => handled.length === 1)
    assert.equal(handled[0]!.isLate, true)
    assert.equal((await receive(request, () => assert.fail('twice'))).fault, 'replay')
  })

  test('and fails late gets the event again, and is told', async () => {
    const { receive, errors } = start(IMPATIENT)
    const request = await sender.request()
    const answer = await receive(request, (_event, { signal }) => once(signal, 'abort').then(() => assert.fail('late')))
    assert.equal(answer.status, 503)
    await until('the late failure is told', () => errors.some(error => /late/.test(String(error))))
    assert.equal((await receive(request, () => {})).status, 200)
  })

  test('to begin, as its store is, is not begun after the answer', async () => {
    const store = memoryReplayStore()
    const going = Promise.withResolvers<void>()
    const { receive } = start({
      ...IMPATIENT,
      replayStore: { ...store, claim: (key, seconds) => going.promise.then(() => store.claim(key, seconds)) },
    })
    const request = await sender.request()
    let begun = 0
    assert.equal((await receive(request, () => (begun += 1))).fault, 'timeout')
    going.resolve()
    let answer = await receive(request, () => {})
    while (answer.fault === 'in_progress') answer = await receive(request, () => {})
    assert.equal(answer.status, 200)
    assert.equal(begun, 0)
  })

  test('knows which attempt it is at, and whose token it has', async () => {
    const { receive, handled } = start()
    const eventId = randomUUID()
    const attempts: number[] = []
    for (const fails of [true, true, false]) {
      await receive(await sender.request({ eventId }), (_event, { attempt, token }) => {
        attempts.push(attempt)
        assert.equal(token.claims.jti, eventId)
        assert.equal(token.kid, sender.issuer.kid)
        if (fails) throw new Error('no')
      })
    }
    assert.deepEqual(attempts, [1, 2, 3])
    assert.equal(handled[0]!.attempt, 3)
  })

  test('may leave work for later, whose failure is told', async () => {
    const { receive, errors } = start()
    const kept: Promise<unknown>[] = []
    const request = { ...(await sender.request()), waitUntil: (promise: Promise<unknown>) => kept.push(promise) }
    const answer = await receive(request, (_event, { waitUntil }) => waitUntil(Promise.reject(new Error('afterwards'))))
    assert.equal(answer.status, 200)
    await kept[0]
    assert.match(String(errors[0]), /afterwards/)
  })
})

test('a claim is taken for a minute, and what was handled is remembered for as long as it may come again', async () => {
  const store = memoryReplayStore()
  const seconds: number[] = []
  const { receive } = start({
    replayStore: {
      ...store,
      claim: (key, forSeconds) => {
        seconds.push(forSeconds)
        return store.claim(key, forSeconds)
      },
      record: (key, owner, receipt, forSeconds) => {
        seconds.push(forSeconds)
        return store.record(key, owner, receipt, forSeconds)
      },
    },
  })
  await receive(await sender.request(), () => {})
  assert.deepEqual(seconds, [60, 96 * 3600])
})

describe('a delivery of an event that was handled', () => {
  test('is acknowledged when that is chosen and its token was made later', async () => {
    const { receive } = start({ replays: 'acknowledge' })
    const eventId = randomUUID()
    const nowSeconds = Math.floor(Date.now() / 1000)
    const first = await sender.request({ eventId, issuedAtSeconds: nowSeconds - 5 })
    assert.equal((await receive(first, () => {})).status, 200)
    assert.equal((await receive(first, () => assert.fail('twice'))).fault, 'replay')
    const retry = await sender.request({ eventId, issuedAtSeconds: nowSeconds })
    assert.equal((await receive(retry, () => assert.fail('twice'))).status, 200)
  })

  test('is a replay where its receipt does not say which delivery was handled', async () => {
    const claim = () => ({ status: 'handled' as const, receipt: '1764000000' })
    const { receive } = start({ replayStore: { ...memoryReplayStore(), claim } })
    assert.equal((await receive(await sender.request(), () => assert.fail('twice'))).fault, 'replay')
  })

  test('under another id is acknowledged, and not handled, where events are handled once', async () => {
    const id = randomUUID()
    for (const [dedupe, times] of [
      ['event', 1],
      ['delivery', 2],
    ] as const) {
      const { receive, handled } = start({ dedupe })
      const first = await sender.request({ id })
      assert.equal((await receive(first, () => {})).status, 200)
      assert.equal((await receive(await sender.request({ id }), () => {})).status, 200)
      assert.equal((await receive(first, () => {})).fault, 'replay')
      assert.equal(handled.length, times)
    }
  })
})

describe('the receiver’s owner', () => {
  test('is told of no ping as of an event that was handled', async () => {
    const { receive, handled } = start()
    assert.equal((await receive(await sender.request({ eventType: 'ping' }), () => assert.fail('given'))).status, 200)
    assert.equal((await receive(await sender.request(), () => {})).status, 200)
    assert.deepEqual(
      handled.map(({ event }) => event.eventType),
      ['project_report_quarterly_overdue'],
    )
  })

  test('lets in by nothing less than true', async () => {
    for (const given of [{ audience: () => 'yes' }, { webhookId: () => 1 }]) {
      const { receive } = start(given as never)
      assert.equal((await receive(await sender.request(), () => {})).status, 401)
    }
  })

  test('is told why a request was refused, with what was expected and found', async () => {
    const { receive, refusals, errors } = start()
    const eventId = randomUUID()
    await receive(await sender.request({ eventId, audience: 'https://receiver.example/other' }), () => {})
    const { message: _, ...refusal } = refusals[0]!
    assert.deepEqual(refusal, {
      code: 'audience',
      status: 401,
      eventId,
      kid: sender.issuer.kid,
      expected: JSON.stringify(audience),
      found: '"https://receiver.example/other"',
    })
    assert.deepEqual(errors, [])
  })

  test('is told of no event’s id that was not signed', async () => {
    const { receive, refusals } = start()
    const { authorization, body } = await sender.request()
    await receive({ authorization: `${authorization.slice(0, -9)}AAAAAAAAA`, body }, () => {})
    assert.deepEqual([refusals[0]!.code, refusals[0]!.eventId], ['signature', undefined])
  })

  test('is told of which event something failed', async () => {
    const { receive, eventIds } = start()
    const eventId = randomUUID()
    await receive(await sender.request({ eventId }), () => assert.fail('no'))
    assert.deepEqual(eventIds, [eventId])
  })

  test('may have several audiences, or a function that knows them', async () => {
    const asked: string[] = []
    const known = (url: string) => asked.push(url) > 0 && url === audience
    for (const given of [[audience, 'https://other.example'], ['https://other.example', audience], known]) {
      const { receive } = start({ audience: given })
      assert.equal((await receive(await sender.request(), () => {})).status, 200)
      assert.equal(
        (await receive(await sender.request({ audience: 'https://third.example' }), () => {})).fault,
        'audience',
      )
    }
    const before = asked.length
    const { receive } = start({ audience: known })
    const { authorization, body } = await sender.request()
    await receive({ authorization: `${authorization.slice(0, -9)}AAAAAAAAA`, body }, () => {})
    assert.equal(asked.length, before, 'strangers made it ask')
  })
})

describe('a webhook', () => {
  const own = randomUUID()

  test('that is another’s is refused', async () => {
    for (const webhookId of [own, [randomUUID(), own], (id: string) => id === own, async (id: string) => id === own]) {
      const { receive } = start({ webhookId })
      assert.equal((await receive(await sender.request({ webhookId: own }), () => {})).status, 200)
      const answer = await receive(await sender.request({ webhookId: randomUUID(), eventType: 'ping' }), () => {})
      assert.deepEqual([answer.status, answer.fault], [401, 'webhook'])
    }
  })

  test('is learned at its first ping', async () => {
    let kept: string | undefined
    const save = async (id: string) => {
      await new Promise(resolve => setTimeout(resolve, 20))
      kept = id
    }
    const webhookId = learnedWebhook({ load: async () => kept, save })
    const { receive } = start({ webhookId })
    assert.equal((await receive(await sender.request({ webhookId: own }), () => {})).fault, 'webhook')
    assert.equal(kept, undefined)
    const pings = [own, randomUUID()].map(async id =>
      receive(await sender.request({ webhookId: id, eventType: 'ping' }), () => {}),
    )
    const statuses = (await Promise.all(pings)).map(({ status }) => status)
    assert.deepEqual(statuses.toSorted(), [200, 401])
    const other = kept === own ? randomUUID() : own
    assert.equal((await receive(await sender.request({ webhookId: kept! }), () => {})).status, 200)
    assert.equal((await receive(await sender.request({ webhookId: other }), () => {})).fault, 'webhook')
  })
})

test('the attempts of 10,000 deliveries that fail are counted, whatever succeeds meanwhile', async () => {
  const handle = handleOnce(checkOptions(options))
  const reports = { eventId: undefined, failed: () => {}, refused: () => {}, handled: () => {} }
  const progress = { waitingFor: '', signal: new AbortController().signal, reports }
  const attemptOf = async (eventId: string, fails: boolean): Promise<number> => {
    let counted = 0
    const handler = (_event: unknown, { attempt }: { attempt: number }) => {
      counted = attempt
      if (fails) throw new Error('no')
    }
    const verified = { event: { eventId, eventType: 'unknown' }, token: { claims: { jti: eventId, iat: 1 } } }
    await handle(verified as never, handler, {} as never, progress).catch(() => {})
    return counted
  }
  for (let nth = 0; nth < 10_000; nth++) {
    await attemptOf(`fails-${nth}`, true)
    if (nth % 100 === 0) await attemptOf(`succeeds-${nth}`, false)
  }
  assert.equal(await attemptOf('fails-0', true), 2)
})

describe('a webhook that is learned', () => {
  const own = randomUUID()

  test('is looked up by each delivery for itself: a look-up that hangs holds up no other', async () => {
    let hangs = true
    const load = () => (hangs ? new Promise<string>(() => (hangs = false)) : own)
    const { receive } = start({ ...IMPATIENT, webhookId: learnedWebhook({ load, save: () => assert.fail() }) })
    const answers = await Promise.all(
      Array.from({ length: 20 }, async () => receive(await sender.request({ webhookId: own }), () => {})),
    )
    // Whichever comes first has the look-up that hangs.
    assert.deepEqual(answers.map(({ status }) => status).toSorted(), [...Array(19).fill(200), 503])
  })

  test('and is known is let in whatever becomes of the look-ups, which hold up others alone', async () => {
    let hangs = false
    const load = () => (hangs ? new Promise<string>(() => {}) : own)
    const { receive } = start({ ...IMPATIENT, webhookId: learnedWebhook({ load, save: () => assert.fail() }) })
    const statusOf = async (webhookId: string) => (await receive(await sender.request({ webhookId }), () => {})).status
    assert.equal(await statusOf(own), 200)
    hangs = true
    const stranger = statusOf(randomUUID())
    const answers = await Promise.all(Array.from({ length: 20 }, () => statusOf(own)))
    assert.deepEqual(answers, Array(20).fill(200))
    assert.equal(await stranger, 503)
  })

  test('and is known is looked up again after five minutes, and refused once the keeper has another', async t => {
    let [kept, loads] = [own, 0]
    const load = async () => {
      loads += 1
      return kept
    }
    const { receive } = start({ webhookId: learnedWebhook({ load, save: () => assert.fail() }) })
    const statusOf = async () => (await receive(await sender.request({ webhookId: own }), () => {})).status
    const present = performance.now.bind(performance)
    let aheadMs = 0
    t.mock.method(performance, 'now', () => present() + aheadMs)
    assert.deepEqual([await statusOf(), await statusOf(), loads], [200, 200, 1])
    kept = randomUUID()
    aheadMs = 299_000
    assert.deepEqual([await statusOf(), loads], [200, 1])
    aheadMs = 301_000
    assert.deepEqual([await statusOf(), loads], [200, 2])
    assert.equal(await statusOf(), 401)
  })

  test('and is known is looked up again once at a time, whatever comes meanwhile', async t => {
    let [hangs, loads] = [false, 0]
    const load = () => {
      loads += 1
      return hangs ? new Promise<string>(() => {}) : own
    }
    const { receive } = start({ webhookId: learnedWebhook({ load, save: () => assert.fail() }) })
    const present = performance.now.bind(performance)
    let aheadMs = 0
    t.mock.method(performance, 'now', () => present() + aheadMs)
    const deliver = async () => (await receive(await sender.request({ webhookId: own }), () => {})).status
    assert.equal(await deliver(), 200)
    hangs = true
    aheadMs = 301_000
    assert.deepEqual([await deliver(), await deliver(), loads], [200, 200, 2])
  })

  test('is what the look-up says that was begun last, whichever ends last', async () => {
    const [before, now] = [randomUUID(), randomUUID()]
    const answers: ((webhookId: string) => void)[] = []
    const load = () => new Promise<string>(resolve => answers.push(resolve))
    const isOwn = learnedWebhook({ load, save: () => assert.fail() }) as (
      id: string,
      event: unknown,
    ) => Promise<boolean>
    const first = isOwn(now, {})
    await delay(5)
    const second = isOwn(now, {})
    answers[1]!(now)
    assert.equal(await second, true)
    answers[0]!(before)
    await first
    assert.equal(await isOwn(now, {}), true)
    assert.equal(answers.length, 2)
  })

  test('is learned anew when it could not be saved', async () => {
    let fails = true
    const save = async () => {
      if (fails) throw new Error('no room')
    }
    const { receive } = start({ webhookId: learnedWebhook({ load: () => undefined, save }) })
    const ping = async (webhookId: string) =>
      (await receive(await sender.request({ webhookId, eventType: 'ping' }), () => {})).status
    assert.equal(await ping(randomUUID()), 500)
    fails = false
    assert.equal(await ping(own), 200)
    assert.equal(await ping(randomUUID()), 401)
  })
})

describe('a stranger', () => {
  const own = randomUUID()

  test('learns from a refusal which check failed, and nothing of what is accepted', async () => {
    const { receive, refusals } = start({ webhookId: own })
    for (const [code, request] of [
      ['webhook', await sender.request({ webhookId: randomUUID(), eventType: 'ping' })],
      ['audience', await sender.request({ webhookId: own, audience: 'https://other.example' })],
    ] as const) {
      const { body, headers } = await receive(request, () => {})
      assert.equal(body, JSON.stringify({ error: code }))
      assert.equal(headers['www-authenticate'], `Bearer error="invalid_token", error_description="${code}"`)
    }
    assert.match(refusals[0]!.message, new RegExp(own))
    assert.match(refusals[1]!.message, new RegExp(audience))
  })

  test('has none of the body read as JSON, and no key looked up, by a token that is none', async t => {
    let asked = 0
    const keys = () => {
      asked += 1
      return []
    }
    const { receive } = start({ keys })
    const body = '['.repeat(100_000)
    const parse = t.mock.method(JSON, 'parse')
    for (const token of ['a.b.c', 'e30.e30.AA']) {
      const { status } = await receive({ authorization: `Bearer ${token}`, body }, () => {})
      assert.equal(status, 401)
    }
    assert.equal(asked, 0)
    assert.ok(parse.mock.calls.every(call => call.arguments[0] !== body))
  })

  test('takes no more than another by a token that nests deeply', async () => {
    const { receive } = start({ keys: IMPATIENT.keys })
    const part = (text: string) => Buffer.from(text).toString('base64url')
    const header = part(JSON.stringify({ alg: 'EdDSA', kid: sender.issuer.kid }))
    const signature = part('x'.repeat(64))
    const bearing = (token: string) => ({ authorization: `Bearer ${token}`, body: '' })
    const costOf = (token: string): Promise<number> =>
      leastCpuMsOf(async () => {
        for (let n = 0; n < 10; n++) assert.equal((await receive(bearing(token), () => {})).status, 401)
      }, 8)
    const claiming = (text: string) => `${header}.${part(`{"x":${text}}`)}.${signature}`
    const choosing = (text: string) => `${part(`{"alg":${text}}`)}.e30.${signature}`
    for (const token of [claiming, choosing]) {
      const flat = await costOf(token(`[${'[],'.repeat(3332)}[]]`))
      const ratio = (await costOf(token(`${'['.repeat(5000)}${']'.repeat(5000)}`))) / flat
      assert.ok(ratio < 10, `${ratio} times as much`)
    }
  })

  test('fills no log by what fails before a signature is verified', async () => {
    const failing = () => {
      throw new Error('no keys')
    }
    const { receive, errors, refusals } = start({ keys: failing })
    for (let n = 0; n < 5; n++) assert.equal((await receive(await sender.request(), () => {})).status, 503)
    assert.equal(errors.length, 1)
    assert.equal(refusals.length, 5)
  })

  test('fills no log: by default what the issuer has signed is told, once a minute for each check', async t => {
    const warn = t.mock.method(console, 'warn', () => {})
    const receiver = createReceiver(options)
    const refused = await sender.request({ audience: 'https://other.example' })
    for (let n = 0; n < 3; n++) {
      await receiver.receive({ authorization: 'Bearer a.b.c', body: '' }, () => {})
      await receiver.receive(refused, () => {})
    }
    assert.equal(warn.mock.callCount(), 1)
    assert.match(
      String(warn.mock.calls[0]!.arguments[0]),
      /for its audience: expected .*, found "https:\/\/other.example"/,
    )
  })
})

describe('verifyDelivery', () => {
  test('refuses an option that it does not have, such as a misspelt one', async () => {
    const request = await sender.request()
    for (const more of [{ webhookIds: ['x'] }, { replayStore: memoryReplayStore() }]) {
      await assert.rejects(verifyDelivery(request, { ...options, ...more }), {
        name: 'TypeError',
        message: /is no option/,
      })
    }
  })

  test('gives the event of a Request, or of its parts, and no more', async () => {
    const { authorization, body } = await sender.request({ id: 'the event' })
    for (let n = 0; n < 2; n++) {
      const request = new Request(audience, { method: 'POST', headers: { authorization }, body })
      assert.equal((await verifyDelivery(request, options)).id, 'the event')
      assert.equal(
        (await verifyDelivery({ authorization, body }, options)).eventType,
        'project_report_quarterly_overdue',
      )
    }
  })

  test('throws what is wrong, with the answer to give', async () => {
    const request = await sender.request({ audience: 'https://other.example' })
    await assert.rejects(verifyDelivery(request, options), { name: 'Fault', code: 'audience', status: 401 })
    await assert.rejects(verifyDelivery(request, { ...options, issuer: 'x' }), TypeError)
  })
})

test('each type of event goes to its own handler, and the rest to the one for the rest', async () => {
  const taken: [string, TidingsEvent][] = []
  const receiver = createReceiver(options)
    .on('token_expired', event => taken.push(['expired', event]))
    .on('project_report_quarterly_overdue', event => taken.push(['overdue', event]))
    .otherwise(event => taken.push(['rest', event]))
  const expired = { accessTokenId: randomUUID() }
  await receiver.receive(await sender.request({ eventType: 'token_expired', payload: expired }))
  await receiver.receive(await sender.request())
  await receiver.receive(await sender.request({ eventType: 'project_archived', payload: {} }))
  await receiver.receive(await sender.request({ eventType: 'token_expired', payload: {} }))
  await receiver.receive(await sender.request({ eventType: 'ping' }))
  assert.deepEqual(
    taken.map(([name, { eventType }]) => `${name} ${eventType}`),
    ['expired token_expired', 'overdue project_report_quarterly_overdue', 'rest unknown', 'rest unknown'],
  )
})

describe('a connection', () => {
  const serve = async (more: Partial<ReceiverOptions> = {}) => {
    const server = createServer()
    await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
    after(() => server.close().closeAllConnections())
    const { port } = server.address() as AddressInfo
    const url = `http://127.0.0.1:${port}/hooks`
    server.on(
      'request',
      expressReceiver({ ...options, audience: url, onError: () => {}, ...more }, () => {}),
    )
    return { url, port }
  }

  test('whose body does not come is answered in time', async () => {
    const { url } = await serve({ handlerTimeoutMs: 100 })
    const slow = send(url, { method: 'POST', headers: { 'content-length': 100 } })
    slow.write('{')
    const [response] = await once(slow, 'response')
    assert.equal(response.statusCode, 503)
    assert.equal(((await json(response)) as { error: string }).error, 'body_incomplete')
    slow.destroy()
  })

  test('whose body does not end is answered, and closed', async () => {
    const { port } = await serve()
    const socket = connect(port, '127.0.0.1')
    socket.write('POST /hooks HTTP/1.1\r\nhost: x\r\nauthorization: Bearer x\r\ntransfer-encoding: chunked\r\n\r\n')
    // As much as is read of it and one byte: nothing lies unread when it is closed, which would lose the answer.
    socket.write(`800000\r\n${'x'.repeat(0x800000)}\r\n1\r\nx\r\n`)
    const [answer] = await once(socket.setEncoding('utf8'), 'data')
    assert.match(answer, /^HTTP\/1\.1 413 .*\r\nconnection: close/is)
    await once(socket, 'close')
  })

  test('that brings too much is read on for a while, so that its sender comes to read the answer', async () => {
    const { port } = await serve()
    const socket = connect(port, '127.0.0.1')
    socket.write('POST /hooks HTTP/1.1\r\nhost: x\r\nauthorization: Bearer x\r\ncontent-length: 4194304\r\n\r\n')
    for (let sent = 0; sent < 4_194_304; sent += 65_536) {
      await new Promise<void>((resolve, reject) => {
        socket.write('x'.repeat(65_536), error => (error ? reject(error) : resolve()))
      })
    }
    const [answer] = await once(socket.setEncoding('utf8'), 'data')
    assert.match(answer, /^HTTP\/1\.1 413 /)
    socket.destroy()
  })

  test('that fails after the body’s end ends nothing', async () => {
    const request = Object.assign(new EventEmitter(), { method: 'POST', headers: {}, pause: () => {} })
    let status = 0
    const response = { writeHead: (given: number) => (status = given), end: () => {} }
    const received = expressReceiver(options, () => {})(request, response)
    request.emit('data', Buffer.from('{}'))
    request.emit('end')
    await received
    assert.equal(status, 401)
    request.emit('error', new Error('read ECONNRESET'))
  })

  test('that was refused early carries the next request', async () => {
    const { port } = await serve()
    const socket = connect(port, '127.0.0.1').setEncoding('utf8')
    let answers = ''
    socket.on('data', text => {
      answers += text
    })
    const refused = `POST /hooks HTTP/1.1\r\nhost: x\r\ncontent-length: 200000\r\n\r\n${'x'.repeat(200_000)}`
    socket.write(refused + refused + refused)
    await until('three answers', () => (answers.match(/HTTP\/1\.1 401/g) ?? []).length === 3)
    socket.destroy()
  })
})

/** Time passes, and the machine's clock is set back. */
const setBack = (t: TestContext, ms: number): void => {
  const { now } = performance
  t.mock.method(performance, 'now', () => now.call(performance) + ms)
  t.mock.timers.setTime(Date.now() - 3_600_000)
}

describe('a key set', () => {
  /** Answers as told; `answer` may never end. */
  const publish = async () => {
    const state = { url: '', requests: 0, answer: (_response: import('node:http').ServerResponse) => {} }
    const server = createServer((_request, response) => {
      state.requests += 1
      state.answer(response)
    })
    await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
    after(() => server.close().closeAllConnections())
    state.url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/keys`
    return state
  }
  const set = JSON.stringify({ keys: sender.issuer.keys })
  const { kid } = sender.issuer

  test('that hangs holds up no key that is known and fresh, whatever strangers send', async t => {
    t.mock.timers.enable({ apis: ['Date'], now: Date.now() })
    const issuer = await publish()
    issuer.answer = response => response.end(set)
    const keys = remoteKeys(issuer.url)
    await keys(kid)
    issuer.answer = () => {}
    for (let n = 0; n < 30; n++) assert.equal((await keys(`stranger ${n}`)).length, 1)
    assert.equal(issuer.requests, 1)
    t.mock.timers.tick(299_000)
    const strangers = Array.from({ length: 30 }, (_, n) => keys(`stranger ${n}`).catch(() => 'refused'))
    assert.equal((await Promise.race([keys(kid), Promise.all(strangers).then(() => [])])).length, 1)
    await until('one request', () => issuer.requests === 2)
    assert.deepEqual(new Set(await Promise.all(strangers)), new Set(['refused']))
    assert.equal(issuer.requests, 2)
  })

  test('whose fetch died with the request that began it is fetched again ten seconds later, not before', async t => {
    t.mock.timers.enable({ apis: ['Date', 'setTimeout'], now: Date.now() })
    const died = t.mock.method(globalThis, 'fetch', () => new Promise(() => {}))
    const keys = remoteKeys('http://keys.invalid')
    const ask = (afterMs: number) => {
      t.mock.timers.tick(afterMs)
      const refused = assert.rejects(keys(kid), /no answer in time/)
      return { requests: died.mock.callCount(), refused }
    }
    const [first, joined, again] = [ask(0), ask(9_900), ask(200)]
    assert.deepEqual([first.requests, joined.requests, again.requests], [1, 1, 2])
    t.mock.timers.tick(10_000)
    await Promise.all([first.refused, joined.refused, again.refused])
  })

  for (const [age, how] of [
    ['301 s', (t: TestContext) => t.mock.timers.tick(301_000)],
    ['301 s by a clock that was set back', (t: TestContext) => setBack(t, 301_000)],
    ['3,590 s', (t: TestContext) => t.mock.timers.tick(3_590_000)],
  ] as const) {
    test(`that lost a key is fetched before a token by it is judged, at an age of ${age}`, async t => {
      t.mock.timers.enable({ apis: ['Date'], now: Date.now() })
      const issuer = await publish()
      issuer.answer = response => response.end(set)
      const keys = remoteKeys(issuer.url)
      await keys(kid)
      const others = JSON.stringify({ keys: sender.issuer.keys.map(key => ({ ...key, kid: 'next' })) })
      issuer.answer = response => response.end(others)
      how(t)
      const found = await Promise.all(Array.from({ length: 20 }, () => keys(kid)))
      assert.deepEqual(new Set(found.flat().map(key => key.kid)), new Set(['next']))
      assert.equal(issuer.requests, 2)
    })
  }

  test('that is away leaves old keys to serve, and is asked every ten seconds at most', async t => {
    t.mock.timers.enable({ apis: ['Date'], now: Date.now() })
    const issuer = await publish()
    issuer.answer = response => response.end(set)
    const keys = remoteKeys(issuer.url)
    await keys(kid)
    issuer.answer = response => response.writeHead(500).end()
    t.mock.timers.tick(301_000)
    for (let second = 0; second < 9; second++) {
      assert.equal((await keys(kid)).length, 1)
      await assert.rejects(async () => keys('stranger'))
      t.mock.timers.tick(1000)
    }
    assert.equal(issuer.requests, 2)
  })

  test('that cannot be had is told once, however many tokens strangers send', async () => {
    const issuer = await publish()
    issuer.answer = response => response.writeHead(500).end()
    const errors: unknown[] = []
    const receiver = createReceiver({
      issuer: sender.issuer.url,
      audience,
      keys: issuer.url,
      onError: error => errors.push(error),
    }).otherwise(() => {})
    for (let n = 0; n < 5; n++) assert.equal((await receiver.receive(await sender.request())).status, 503)
    assert.equal(issuer.requests, 1)
    assert.equal(errors.length, 1)
  })

  test('is fetched again in the background, which a runtime is asked to wait for', async t => {
    t.mock.timers.enable({ apis: ['Date'], now: Date.now() })
    const issuer = await publish()
    issuer.answer = response => response.end(set)
    const keys = remoteKeys(issuer.url)
    await keys(kid)
    t.mock.timers.tick(250_000)
    const kept: Promise<unknown>[] = []
    assert.equal((await keys(kid, { waitUntil: promise => kept.push(promise) })).length, 1)
    await kept[0]
    assert.equal(issuer.requests, 2)
  })

  test('that drips, or grows, is given up', async () => {
    const issuer = await publish()
    const drip = (response: import('node:http').ServerResponse) => {
      const timer = setInterval(() => response.write(' '), 100)
      response.once('close', () => clearInterval(timer))
    }
    issuer.answer = drip
    await assert.rejects(async () => remoteKeys(issuer.url)(kid), /no whole answer within 5 s/)
    issuer.answer = response => {
      const grow = () => {
        while (!response.destroyed && response.write('x'.repeat(65_536)));
      }
      response.on('drain', grow)
      grow()
    }
    await assert.rejects(async () => remoteKeys(issuer.url)(kid), /longer than 256 KiB/)
  })

  test('that is empty or unreadable replaces no good one', async t => {
    t.mock.timers.enable({ apis: ['Date'], now: Date.now() })
    const issuer = await publish()
    issuer.answer = response => response.end(set)
    const keys = remoteKeys(issuer.url)
    await keys(kid)
    for (const lie of [
      '{"keys":[]}',
      '{}',
      '[]',
      'null',
      '<html>',
      '{"keys":[{"kty":"OKP","crv":"Ed25519","x":"AA","kid":"x"}]}',
    ]) {
      issuer.answer = response => response.end(lie)
      t.mock.timers.tick(20_000)
      await assert.rejects(async () => keys('stranger'), /could not be had/)
      assert.equal((await keys(kid)).length, 1)
    }
  })
})
