import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { describe, test } from 'node:test'
import {
  type Answer,
  createReceiver,
  type KnownEvent,
  memoryReplayStore,
  type ReceiverOptions,
  type ReplayStore,
  RetryLater,
  type TidingsEvent,
} from '../../receiver/index.ts'
import { audience, overdue, startSender } from './sender.ts'

const sender = await startSender()

const start = (options: Partial<ReceiverOptions> = {}) => {
  const events: TidingsEvent[] = []
  const errors: unknown[] = []
  const receiver = createReceiver({
    issuer: sender.issuer.url,
    audience,
    onError: error => errors.push(error),
    ...options,
  })
  const handler = (event: TidingsEvent) => events.push(event)
  return { receive: receiver.receive, handler, events, errors }
}

const refusal = ({ status, fault, body }: Answer) => ({ status, fault, error: JSON.parse(body).error })

describe('a delivery', () => {
  test('that is valid reaches the handler once, and is answered 200', async () => {
    const { receive, handler, events } = start()
    const eventId = randomUUID()
    assert.deepEqual(await receive(await sender.request({ eventId }), handler), { status: 200, headers: {}, body: '' })
    assert.equal(events.length, 1)
    const event = events[0]!
    assert.equal(event.eventId, eventId)
    assert.equal(event.eventTime, '2026-11-21T00:40:01.123+00:00')
    // The payload's type follows from the event's.
    if (event.eventType !== 'project_report_quarterly_overdue') assert.fail(event.eventType)
    assert.equal(event.payload.projectReport.quarter, '2026-3')
  })

  test('is read from bytes as from text', async () => {
    const { receive, handler, events } = start()
    const request = await sender.request()
    assert.equal((await receive({ ...request, body: Buffer.from(request.body) }, handler)).status, 200)
    assert.equal(events.length, 1)
  })

  test('that is a ping is answered 200, and there is nothing to handle', async () => {
    const { receive, handler, events } = start()
    assert.equal((await receive(await sender.request({ eventType: 'ping' }), handler)).status, 200)
    assert.equal(events.length, 0)
  })

  test('of a type that came later reaches the handler as unknown', async () => {
    const { receive, handler, events } = start()
    const request = await sender.request({ eventType: 'project_archived', payload: { reason: 'done' } })
    assert.equal((await receive(request, handler)).status, 200)
    const event = events[0]!
    if (event.eventType !== 'unknown') assert.fail(event.eventType)
    assert.equal(event.unknownType, 'project_archived')
    assert.deepEqual(event.payload, { reason: 'done' })
  })

  for (const eventType of ['constructor', '__proto__', 'unknown']) {
    test(`whose type is “${eventType}” is unknown as well`, async () => {
      const { receive, handler, events } = start()
      assert.equal((await receive(await sender.request({ eventType }), handler)).status, 200)
      assert.equal(events[0]!.eventType, 'unknown')
    })
  }

  test('whose payload has more than this version knows is handled, with all of it', async () => {
    const { receive, handler, events } = start()
    const payload = { projectReport: { ...overdue.projectReport, region: 'north' }, note: 'new' }
    assert.equal((await receive(await sender.request({ payload }), handler)).status, 200)
    assert.deepEqual(events[0]!.payload, payload)
  })

  test('whose ids are UUIDs of no known version is handled', async () => {
    const { receive, handler } = start()
    const id = '11111111-1111-1111-1111-111111111111'
    const payload = { projectReport: { ...overdue.projectReport, id, projectId: id } }
    assert.equal((await receive(await sender.request({ payload }), handler)).status, 200)
  })

  test('whose payload lacks what its type has is handed over untyped, and says what it lacks', async () => {
    const { receive, handler, events } = start()
    const { quarter: _, ...projectReport } = overdue.projectReport
    assert.equal((await receive(await sender.request({ payload: { projectReport } }), handler)).status, 200)
    const event = events[0]!
    if (event.eventType !== 'unknown') assert.fail(event.eventType)
    assert.equal(event.unknownType, 'project_report_quarterly_overdue')
    assert.equal(event.misfit, 'payload.projectReport.quarter is missing')
    assert.deepEqual(event.payload, { projectReport })
  })

  test('with a member of another type is handed over untyped', async () => {
    const { receive, handler, events } = start()
    const payload = { projectReport: { ...overdue.projectReport, quarter: 3 } }
    assert.equal((await receive(await sender.request({ payload }), handler)).status, 200)
    const event = events[0]!
    if (event.eventType !== 'unknown') assert.fail(event.eventType)
    assert.equal(event.misfit, 'payload.projectReport.quarter is not of type string, but number')
  })

  for (const name of ['webhookId', 'eventType', 'eventTime', 'payload']) {
    test(`that was signed without ${name} is answered 500, so that it comes again`, async () => {
      const { receive, handler } = start()
      const eventId = randomUUID()
      const { [name]: _, ...rest } = JSON.parse(sender.issuer.bodyOf(eventId))
      const body = JSON.stringify(rest)
      const authorization = `Bearer ${await sender.issuer.token(audience, eventId, { body })}`
      const answer = await receive({ authorization, body }, handler)
      assert.deepEqual(refusal(answer), { status: 500, fault: 'body', error: 'body' })
    })
  }

  test('of which one character was changed on its way is refused', async () => {
    const { receive, handler, events } = start()
    const request = await sender.request()
    const answer = await receive({ ...request, body: request.body.replace('2026-3', '2026-4') }, handler)
    assert.deepEqual(refusal(answer), { status: 401, fault: 'body_digest', error: 'body_digest' })
    assert.equal(events.length, 0)
  })

  test('tells the event’s own id, which is not the delivery’s', async () => {
    const { receive, handler, events } = start()
    await receive(await sender.request({ id: 'the event', eventId: 'the delivery' }), handler)
    assert.deepEqual([events[0]!.id, events[0]!.eventId], ['the event', 'the delivery'])
  })

  test('whose body was exchanged is refused', async () => {
    const { receive, handler, events } = start()
    const { authorization } = await sender.request()
    const { body } = await sender.request()
    assert.deepEqual(refusal(await receive({ authorization, body }, handler)), {
      status: 401,
      fault: 'jti',
      error: 'jti',
    })
    assert.equal(events.length, 0)
  })

  test('with another method is answered 405', async () => {
    const { receive, handler } = start()
    const answer = await receive({ method: 'GET', authorization: undefined, body: '' }, handler)
    assert.equal(answer.status, 405)
    assert.equal(answer.headers.allow, 'POST')
  })

  for (const authorization of [undefined, null, '', 'Bearer', 'Bearer ', 'Basic YTpi']) {
    test(`with ${JSON.stringify(authorization)} as Authorization is asked for a bearer token`, async () => {
      const { receive, handler } = start()
      const answer = await receive({ authorization, body: '{}' }, handler)
      assert.deepEqual(refusal(answer), { status: 401, fault: 'token_missing', error: 'token_missing' })
      assert.equal(answer.headers['www-authenticate'], 'Bearer')
    })
  }

  test('may write the scheme in any case', async () => {
    const { receive, handler } = start()
    const request = await sender.request()
    const authorization = request.authorization.replace('Bearer', 'bearer')
    assert.equal((await receive({ ...request, authorization }, handler)).status, 200)
  })

  test('with a token that is not valid is answered 401 with the check that failed, as RFC 6750 has it', async () => {
    const { receive, handler, events } = start()
    const answer = await receive(await sender.request({ audience: 'https://receiver.example/other' }), handler)
    assert.deepEqual(refusal(answer), { status: 401, fault: 'audience', error: 'audience' })
    assert.equal(answer.headers['www-authenticate'], 'Bearer error="invalid_token", error_description="audience"')
    assert.equal(events.length, 0)
  })

  test('longer than 1 MiB is answered 413', async () => {
    const { receive, handler } = start()
    const { authorization } = await sender.request()
    assert.equal((await receive({ authorization, body: 'x'.repeat(1024 * 1024 + 1) }, handler)).status, 413)
  })

  test('is checked against the clock that was given', async () => {
    const issuedAtSeconds = 1_795_221_601
    const request = await sender.request({ issuedAtSeconds })
    const late = start({ now: () => (issuedAtSeconds + 300) * 1000 })
    assert.equal((await late.receive(request, late.handler)).fault, 'expiry')
    const inTime = start({ now: () => (issuedAtSeconds + 299) * 1000 })
    assert.equal((await inTime.receive(request, inTime.handler)).status, 200)
  })
})

test('a payload is typed by the type of its event', () => {
  const describeEvent = (event: TidingsEvent): string => {
    switch (event.eventType) {
      case 'project_report_quarterly_submitted':
        return event.payload.projectReport.submitterName
      case 'project_report_quarterly_approved':
        // @ts-expect-error who submitted it is not in the event of an approval
        return event.payload.projectReport.submitterName ?? event.payload.projectReport.approvedDate
      case 'project_report_quarterly_overdue':
        return event.payload.projectReport.quarter
      case 'token_expired':
        return event.payload.accessTokenId
      case 'webhook_inactive':
        return event.payload.webhook.statusReason
      case 'delivery_dropped':
        return event.payload.delivery.reason
      case 'unknown':
        return event.unknownType
      default:
        return event satisfies never
    }
  }
  const envelope = { id: '', webhookId: '', eventId: '', eventTime: '' }
  const expired = { ...envelope, eventType: 'token_expired', payload: { accessTokenId: 'x' } } satisfies TidingsEvent
  assert.equal(describeEvent(expired satisfies KnownEvent<'token_expired'>), 'x')
})

describe('a delivery that comes again', () => {
  test('after it was handled is refused with 401 and not handled again', async () => {
    const { receive, handler, events } = start()
    const request = await sender.request()
    await receive(request, handler)
    assert.deepEqual(refusal(await receive(request, handler)), { status: 401, fault: 'replay', error: 'replay' })
    assert.equal(events.length, 1)
  })

  test('with a fresh token after it was handled is refused as well', async () => {
    const { receive, handler, events } = start()
    const eventId = randomUUID()
    const nowSeconds = Math.floor(Date.now() / 1000)
    await receive(await sender.request({ eventId, issuedAtSeconds: nowSeconds - 20 }), handler)
    assert.equal((await receive(await sender.request({ eventId }), handler)).fault, 'replay')
    assert.equal(events.length, 1)
  })

  test('after its handler threw is handled, and is no replay', async () => {
    const { receive, handler, events, errors } = start()
    const request = await sender.request()
    const failing = await receive(request, () => Promise.reject(new Error('postgres://user:secret@db is away')))
    assert.deepEqual(refusal(failing), { status: 500, fault: 'handler_failed', error: 'handler_failed' })
    assert.equal((await receive(request, handler)).status, 200)
    assert.equal(events.length, 1)
    // The receiver is told what went wrong, the sender is not.
    assert.match(String(errors[0]), /secret/)
    assert.doesNotMatch(failing.body, /secret/)
  })

  test('after a handler that throws at once is handled too', async () => {
    const { receive, handler, events } = start()
    const request = await sender.request()
    const failing = await receive(request, () => {
      throw new Error('no')
    })
    assert.equal(failing.status, 500)
    await receive(request, handler)
    assert.equal(events.length, 1)
  })

  test('while it is being handled is told to come later, and handled once', async () => {
    const { receive, handler, events } = start()
    const request = await sender.request()
    const { promise, resolve } = Promise.withResolvers<void>()
    const begun = Promise.withResolvers<void>()
    const first = receive(request, async event => {
      handler(event)
      begun.resolve()
      await promise
    })
    await begun.promise
    assert.deepEqual(refusal(await receive(request, handler)), {
      status: 503,
      fault: 'in_progress',
      error: 'in_progress',
    })
    resolve()
    assert.equal((await first).status, 200)
    assert.equal(events.length, 1)
  })

  test('a hundred times at once is handled once', async () => {
    const { receive, handler, events } = start()
    const request = await sender.request()
    await Promise.all(Array.from({ length: 100 }, () => receive(request, handler)))
    assert.equal(events.length, 1)
  })

  test('because the handler asked for a pause is no replay, and the pause is no error', async () => {
    const { receive, handler, events, errors } = start()
    const request = await sender.request()
    const answer = await receive(request, () => {
      throw new RetryLater(29.2)
    })
    assert.equal(answer.status, 429)
    assert.equal(answer.headers['retry-after'], '30')
    await receive(request, handler)
    assert.equal(events.length, 1)
    assert.deepEqual(errors, [])
  })

  test('and was refused before is not taken for a replay', async () => {
    const { receive, handler } = start()
    const { authorization, body } = await sender.request()
    assert.equal((await receive({ authorization, body: '{}' }, handler)).fault, 'jti')
    assert.equal((await receive({ authorization, body }, handler)).status, 200)
  })

  test('to another process with the same store is refused', async () => {
    const replayStore = memoryReplayStore()
    const one = start({ replayStore })
    const other = start({ replayStore })
    const request = await sender.request()
    await one.receive(request, one.handler)
    assert.equal((await other.receive(request, other.handler)).fault, 'replay')
  })
})

test('a pause that no number tells is refused where it is made', () => {
  for (const seconds of [Number.NaN, -1, Number.POSITIVE_INFINITY, 1e21, 86_401, '5' as never]) {
    assert.throws(() => new RetryLater(seconds), RangeError)
  }
})

describe('a replay store that fails', () => {
  const down = () => Promise.reject(new Error('redis is away'))
  const store = (failing: Partial<ReplayStore>): ReplayStore => ({ ...memoryReplayStore(), ...failing })

  test('when asked has the delivery come again, unhandled', async () => {
    const { receive, handler, events, errors } = start({ replayStore: store({ claim: down }) })
    const answer = await receive(await sender.request(), handler)
    assert.deepEqual(refusal(answer).status, 503)
    assert.equal(answer.fault, 'replay_store_unavailable')
    assert.equal(events.length, 0)
    assert.match(String(errors[0]), /redis/)
  })

  test('when told does not undo that the event was handled', async () => {
    const { receive, handler, errors } = start({ replayStore: store({ record: down }) })
    assert.equal((await receive(await sender.request(), handler)).status, 200)
    assert.match(String(errors[0]), /redis/)
  })

  test('when told of a failure leaves the answer a 500', async () => {
    const { receive, errors } = start({ replayStore: store({ release: down }) })
    assert.equal((await receive(await sender.request(), () => assert.fail('no'))).status, 500)
    assert.equal(errors.length, 2)
  })
})

describe('keys', () => {
  test('that cannot be had are answered 503, so that the delivery comes again', async () => {
    const { receive, handler, errors } = start({ keys: 'http://127.0.0.1:1/jwks.json' })
    const answer = await receive(await sender.request(), handler)
    assert.deepEqual(refusal(answer), { status: 503, fault: 'keys_unavailable', error: 'keys_unavailable' })
    assert.match(String(errors[0]), /127\.0\.0\.1:1/)
  })

  test('may be given as they are', async () => {
    const { receive, handler } = start({ keys: sender.issuer.keys as never })
    assert.equal((await receive(await sender.request(), handler)).status, 200)
  })

  test('may come from anywhere, by kid', async () => {
    const asked: unknown[] = []
    const { receive, handler } = start({
      keys: async kid => {
        asked.push(kid)
        return sender.issuer.keys as never
      },
    })
    assert.equal((await receive(await sender.request(), handler)).status, 200)
    assert.deepEqual(asked, [sender.issuer.kid])
  })

  test('are fetched from the issuer that was named, not from one that a token names', async () => {
    const untrusted = await startSender()
    const { receive, handler } = start()
    assert.equal((await receive(await untrusted.request(), handler)).fault, 'key')
    assert.equal(untrusted.issuer.fetches, 0)
  })

  test('that have been rotated are fetched anew', async t => {
    t.mock.timers.enable({ apis: ['Date'], now: Date.now() })
    const rotating = await startSender()
    const { receive, handler } = start({ issuer: rotating.issuer.url })
    assert.equal((await receive(await rotating.request(), handler)).status, 200)
    rotating.issuer.rotate()
    t.mock.timers.tick(60_000)
    assert.equal((await receive(await rotating.request(), handler)).status, 200)
  })
})

test('what should be a URL and is none is told at the start', () => {
  const given = { issuer: sender.issuer.url, audience }
  assert.throws(() => createReceiver({ ...given, keys: 'jwks.json' }), /keys is "jwks.json"; it should be the URL of/)
  assert.throws(() => createReceiver({ issuer: 'tidings', audience }), /issuer is "tidings"; it should be the address/)
  assert.throws(() => createReceiver({ issuer: sender.issuer.url, audience: undefined as never }), /audience is undef/)
})
