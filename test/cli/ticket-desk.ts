import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, before, describe, it } from 'node:test'
import type { Clock } from '../../server/clock.ts'
import type { Credentials } from '../../shared/hmac.ts'
import { eventually } from '../support/eventually.ts'
import { type Puller, puller } from '../support/puller.ts'
import { type Answer, type ReceivedRequest, type Receiver, startReceiver } from '../support/receiver.ts'
import { addProject, startTestServer, type TestServer } from '../support/server.ts'
import { everyNth } from '../support/size.ts'
import { temporaryFolder, tidings } from './tidings.ts'

// Tickets of support: "the event did not come". Each true cause is made on a server by its API alone. `why` names it,
// and the commands that it prints, one after the other, end with the event at the receiver.

export const APPROVED = 'project_report_quarterly_approved'

type Given = Answer | ((request: ReceivedRequest) => Answer | Promise<Answer>)
type Explained = {
  verdict: string
  reasons: { code: string; message: string; at: string | null }[]
  next: string | null
  delivery: { id: string; status: string } | null
}

const EXPLAIN = `query ($webhookId: UUID!, $eventId: UUID!) {
  explainDelivery(webhookId: $webhookId, eventId: $eventId) {
    verdict reasons { code message at } next delivery { id status } } }`

const UPSERT = `mutation ($url: String, $id: UUID, $events: [EventType!], $organisationIds: [UUID!],
  $projectIds: [UUID!], $status: WebhookStatus, $transport: WebhookTransport, $ordering: WebhookOrdering,
  $signing: WebhookSigning, $headers: JSON, $recovery: WebhookRecovery) {
  upsertWebhook(id: $id, url: $url, events: $events, organisationIds: $organisationIds, projectIds: $projectIds,
    status: $status, transport: $transport, ordering: $ordering, signing: $signing, headers: $headers,
    recovery: $recovery) { id secret } }`

const SUBMIT = `mutation ($p: UUID!, $q: String!, $u: UUID!) {
  submitProjectReport(projectId: $p, quarter: $q, submitterId: $u) { id } }`

/** A server, somebody of operations, and a receiver whose answers can be changed. */
export class Desk {
  server!: TestServer
  receiver!: Receiver
  ops!: Credentials & { id: string }
  readonly answers = new Map<string, (request: ReceivedRequest) => Answer | Promise<Answer>>()

  async open(engine: string, options: { env?: Record<string, string>; clock?: Clock }): Promise<void> {
    this.receiver = await startReceiver({
      answer: request => this.answers.get(request.path)?.(request) ?? { status: 200 },
    })
    this.server = await startTestServer(engine, options)
    this.ops = await this.server.token({ name: 'ops', permissions: ['admin'] })
  }

  close(): Promise<unknown> {
    return Promise.all([this.server?.stop(), this.receiver?.close()])
  }

  /** Asks as somebody, and fails on an error. */
  async asked(document: string, variables: object = {}, as: Credentials = this.ops) {
    const { data, errors } = await eventually(
      'the server has room',
      () => this.server.graphql(document, variables, as),
      answer => answer.errors?.[0]?.extensions.code !== 'UNAVAILABLE',
      { everyMs: 100 },
    )
    assert.equal(errors, undefined, JSON.stringify(errors))
    return data
  }

  async explained(webhookId: string, eventId: string): Promise<Explained> {
    return (await this.asked(EXPLAIN, { webhookId, eventId })).explainDelivery
  }

  settles(webhookId: string, eventId: string): Promise<Explained> {
    return eventually(
      'its last delivery ends',
      () => this.explained(webhookId, eventId),
      ({ delivery }) => delivery?.status !== 'pending',
      { everyMs: 100 },
    )
  }

  /** Runs a command line as somebody of operations. */
  run(line: string) {
    const asks = /^tidings (webhooks (recover|update)|deliveries redeliver)/.test(line)
    const { apiKey, apiSecret } = this.ops
    return tidings([...line.split(' ').slice(1), ...(asks ? ['--yes'] : []), '--output', 'json'], {
      home,
      env: { TIDINGS_URL: this.server.url, TIDINGS_API_KEY: apiKey, TIDINGS_API_SECRET: apiSecret },
    })
  }

  /** Runs a command, and then those that a `why` among them names; returns what the last one printed. */
  async follow(line: string): Promise<string> {
    const { code, stdout, stderr } = await this.run(line)
    assert.equal(code, 0, `${line}: ${stderr}`)
    const next = line.startsWith('tidings why ') ? JSON.parse(stdout).next : null
    return next === null ? stdout : this.follow(next)
  }

  /** An endpoint whose answer can be changed, and a place for an event to happen. */
  async place() {
    const own = await addProject(this.server.database, { organisation: randomUUID(), project: randomUUID() })
    const other = await addProject(this.server.database, { organisation: randomUUID(), project: randomUUID() })
    const path = `/webhook/${randomUUID()}`
    const url = new URL(path, this.receiver.url).href
    /** What the endpoint answers to all but pings. */
    const answer = (given: Given): void => {
      this.answers.set(path, request =>
        request.body?.eventType === 'ping' ? { status: 200 } : typeof given === 'function' ? given(request) : given,
      )
    }
    const upsert = async (input: object = {}, as?: Credentials): Promise<{ id: string; secret: string | null }> => {
      // By default of this place alone, so that what happens at others leaves its endpoint alone.
      const made = 'id' in input || 'projectIds' in input ? {} : { organisationIds: [own.organisationId] }
      const given = 'id' in input ? input : { url, ...made, ...input }
      return (await this.asked(UPSERT, given, as)).upsertWebhook
    }
    const happens = async (quarter = '2026-3', as?: Credentials): Promise<string> => {
      await this.asked(SUBMIT, { p: own.projectId, q: quarter, u: own.userId }, as)
      const { events } = await this.asked('query ($s: MangoQuery) { events(query: $s) { id } }', {
        s: { selector: { projectId: own.projectId, 'payload.projectReport.quarter': quarter } },
      })
      return events[0].id
    }
    return {
      ...{ ...own, other, url, path, answer, upsert, happens, desk: this as Desk },
      webhook: async (input?: object, as?: Credentials) => (await upsert(input, as)).id,
      settles: (webhookId: string, eventId: string) => this.settles(webhookId, eventId),
      /** A webhook and an event whose last delivery there has ended. */
      ended: async (given: Given, input: object = {}) => {
        const { id: webhookId } = await upsert(input)
        answer(given)
        const eventId = await happens()
        await this.settles(webhookId, eventId)
        return { webhookId, eventId }
      },
      /** Waits until the explanation begins with a reason. */
      explainedAs: (code: string, of: { webhookId: string; eventId: string }) =>
        eventually(
          `it is explained as ${code}`,
          () => this.explained(of.webhookId, of.eventId),
          ({ reasons: [first] }) => first?.code === code,
          { everyMs: 50 },
        ),
      isInactive: (webhookId: string) =>
        eventually(
          'the webhook is inactive',
          () => this.asked(`{ webhooks(query: { selector: { id: "${webhookId}" } }) { status } }`),
          ({ webhooks: [found] }) => found.status === 'inactive',
        ),
      arrives: (quarter: string) => this.receiver.waitFor(all => all.some(one => isOf(one, path, quarter))),
      puller: (as: Credentials = this.ops): Puller => puller(this.server, as),
    }
  }
}
export type Place = Awaited<ReturnType<Desk['place']>>

const isOf = ({ path, body }: ReceivedRequest, at: string, quarter: string): boolean =>
  path === at && body?.payload?.projectReport?.quarter === quarter

export type Ticket = {
  cause: string
  make: (at: Place) => Promise<{ webhookId: string; eventId: string }>
  codes: string[]
  says?: RegExp
  /** What somebody does at the endpoint before the commands are run. */
  mended?: (at: Place) => unknown
  /** What happens after a command, or by itself where none is left. `printed`: what the command printed. */
  passes?: (at: Place, printed: string) => unknown
  /**
   * `next event`: the commands let later events in, such as those of another webhook. `told`: nothing is to be mended,
   * and a command, if there is one, shows what there is. By default the event itself arrives.
   */
  ends?: 'next event' | 'told'
}

const home = temporaryFolder()

const solve = async (desk: Desk, { make, codes, says, mended, passes, ends }: Ticket): Promise<void> => {
  const at = await desk.place()
  const { webhookId, eventId } = await make(at)
  const found = await desk.explained(webhookId, eventId)
  assert.deepEqual(
    found.reasons.map(({ code }) => code),
    codes,
    JSON.stringify(found, null, 1),
  )
  if (says) assert.match(found.reasons.map(({ message }) => message).join('\n'), says)
  await mended?.(at)
  if (ends !== undefined) {
    if (found.next !== null) await desk.follow(found.next)
    if (ends === 'told') return
    await at.happens('2027-1')
    return void (await at.arrives('2027-1'))
  }
  let now = found
  const hasArrived = () =>
    now.verdict === 'delivered' && (found.verdict !== 'delivered' || now.delivery!.id !== found.delivery!.id)
  for (let steps = 0; !hasArrived(); steps++) {
    assert.ok(steps < 5 && (now.next !== null || now.verdict === 'waiting'), `no way on: ${JSON.stringify(now)}`)
    const printed = now.next === null ? '' : await desk.follow(now.next)
    await passes?.(at, printed)
    now = await eventually(
      'it waits no more',
      () => desk.explained(webhookId, eventId),
      ({ verdict }) => verdict !== 'waiting',
      { everyMs: 100 },
    )
  }
  assert.equal(now.delivery!.status, 'delivered')
}

/** Plays tickets on a server of an engine, by day half of them. */
export const play = (
  name: string,
  engine: string,
  tickets: Ticket[],
  { concurrency = 4, ...options }: { env?: Record<string, string>; clock?: Clock; concurrency?: number } = {},
): void => {
  describe(`${name} (${engine})`, { concurrency }, () => {
    const desk = new Desk()
    before(() => desk.open(engine, options))
    after(() => desk.close())
    for (const ticket of everyNth(2, tickets))
      it(`${ticket.cause}: ${ticket.codes.join(', ')}`, () => solve(desk, ticket))
  })
}
