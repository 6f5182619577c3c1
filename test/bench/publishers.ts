import { setTimeout as wait } from 'node:timers/promises'
import type { Credentials } from '../../shared/hmac.ts'
import { createClient } from './client.ts'

// Publishers in a process of their own, for benchmarks: from `start` to `stop` they submit project reports, with a
// number in flight or a rate, each of another project and quarter; then they report the answers and their times.

export type Start = {
  kind: 'start'
  urls: string[]
  publishers: Credentials[]
  projectIds: string[]
  submitterId: string
  /** Requests in flight throughout, or requests begun a second. */
  pace: { inFlight: number } | { rate: number }
}
export type Stop = { kind: 'stop' }

/** Epoch milliseconds with fractions, comparable between processes of one machine. */
export type Published = {
  accepted: { reportId: string; begun: number; acknowledged: number }[]
  /** When the requests were begun that had no answer in time. */
  unanswered: number[]
  /** The times to an answer with an error, in milliseconds, by the error. */
  refused: Record<string, number[]>
}

const SUBMIT = `mutation ($projectId: UUID!, $quarter: String!, $submitterId: UUID!) {
  submitProjectReport(projectId: $projectId, quarter: $quarter, submitterId: $submitterId) { id } }`
/** Far from the quarters whose reports a scheduler opens. */
const FIRST_YEAR = 3000
/** How long after `stop` an answer still counts. */
const GRACE_MS = 5_000
const MOST_IN_FLIGHT = 2_000
const TICK_MS = 5

// Whatever waits, waits at the server.
const client = createClient({ connections: MOST_IN_FLIGHT })
const quarters = new Map<string, number>()
let published: Published
const underWay = new Map<Promise<void>, number>()
let run = 0

const now = (): number => performance.timeOrigin + performance.now()

const submit = async ({ urls, publishers, projectIds, submitterId }: Start, n: number): Promise<void> => {
  const into = published
  const projectId = projectIds[n % projectIds.length]!
  const number = quarters.get(projectId) ?? 0
  quarters.set(projectId, number + 1)
  const quarter = `${FIRST_YEAR + Math.floor(number / 4)}-${(number % 4) + 1}`
  const begun = now()
  try {
    const credentials = publishers[n % publishers.length]!
    const answer = await client.send(urls[n % urls.length]!, credentials, SUBMIT, { projectId, quarter, submitterId })
    if (answer.row) into.accepted.push({ reportId: answer.row.id as string, begun, acknowledged: now() })
    else {
      const error = `${answer.status} ${answer.code}`
      const times = into.refused[error] ?? []
      times.push(now() - begun)
      into.refused[error] = times
      await wait(100)
    }
  } catch {
    into.unanswered.push(begun)
    await wait(100)
  }
}

const begin = (start: Start, n: number): Promise<void> => {
  const submitting = submit(start, n).finally(() => underWay.delete(submitting))
  underWay.set(submitting, now())
  return submitting
}

const start = (given: Start): void => {
  const ours = ++run
  published = { accepted: [], unanswered: [], refused: {} }
  const { pace } = given
  if ('inFlight' in pace) {
    for (let lane = 0; lane < pace.inFlight; lane++) {
      void (async () => {
        for (let n = lane; run === ours; n += pace.inFlight) await begin(given, n)
      })()
    }
    return
  }
  const startedAt = performance.now()
  let issued = 0
  const ticking = setInterval(() => {
    if (run !== ours) return clearInterval(ticking)
    const owed = Math.floor(((performance.now() - startedAt) / 1000) * pace.rate)
    for (; issued < owed && underWay.size < MOST_IN_FLIGHT; issued++) void begin(given, issued)
  }, TICK_MS)
}

const stop = async (): Promise<void> => {
  run += 1
  const told = published
  await Promise.race([Promise.all(underWay.keys()), wait(GRACE_MS)])
  const open = [...underWay.values()]
  underWay.clear()
  process.send!({ ...told, unanswered: [...told.unanswered, ...open] } satisfies Published)
}

process.on('message', (message: Start | Stop) => (message.kind === 'start' ? start(message) : void stop()))
process.on('disconnect', () => process.exit())
process.send!('ready')
