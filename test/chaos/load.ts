import { randomUUID } from 'node:crypto'
import { setTimeout as wait } from 'node:timers/promises'
import { Agent, request } from 'undici'
import { signRequest } from '../../shared/hmac.ts'
import { seeded } from './random.ts'
import type { World } from './world.ts'

/** A mutation with an error that is only acceptable during a fault. */
export type Refusal = { at: number; tookMs: number; mutation: string; code: string; message: string }

export type LoadResult = {
  /** Reports that a server said it had submitted, as `project quarter`. */
  submitted: Set<string>
  /** The ids of reports that a server said it had approved. */
  approved: Set<string>
  refusals: Refusal[]
  /** Requests that had no answer: the process was killed or frozen, or nobody listened. */
  unanswered: number
}

/** Where the load may go. */
export type Target = { url: string; avoidUntil: number }

const ANSWER_WITHIN_MS = 12_000
const AVOID_MS = 2_000
/** The most requests under way, in seconds of the rate: servers that come back are given what they can bear. */
const MOST_UNDER_WAY_S = 3
const APPROVED_PART = 0.2
const TICK_MS = 20
/** Far from the quarters that a scheduler opens reports of. */
const FIRST_YEAR = 3000

const SUBMIT = `mutation ($projectId: UUID!, $quarter: String!, $submitterId: UUID!) {
  submitProjectReport(projectId: $projectId, quarter: $quarter, submitterId: $submitterId) { id } }`
const APPROVE = `mutation ($id: UUID!, $approverId: UUID!) {
  approveProjectReport(id: $id, approverId: $approverId) { id } }`

/**
 * Submits reports, and approves a part of them: `rate` mutations a second, spread over the servers, each repeated until
 * it is known to have happened. One that was not answered may have happened: a CONFLICT then says that it has.
 */
export const startLoad = (given: { world: World; rate: number; seed: number; targets: () => Target[] }) => {
  const { world, rate, seed, targets } = given
  const random = seeded(seed + 1)
  const agent = new Agent({ connections: 64, keepAliveTimeout: 2_000 })
  const result: LoadResult = { submitted: new Set(), approved: new Set(), refusals: [], unanswered: 0 }
  const approvable: string[] = []
  const underWay = new Set<Promise<void>>()
  let isOver = false
  let abandoned = false
  let issued = 0
  /** How many reports of each project have been submitted. */
  const quarters = world.projectIds.map(() => 0)

  const mutate = async (mutation: string, variables: object): Promise<{ id?: string }> => {
    for (let isRepeated = false; !abandoned; ) {
      const target = await choose()
      if (!target) break
      const at = Date.now()
      try {
        const { data, errors } = await post(target.url, mutation, variables)
        if (data) return Object.values(data)[0]!
        const { code } = errors![0]!.extensions
        if (code === 'CONFLICT' && isRepeated) return {}
        result.refusals.push({ at, tookMs: Date.now() - at, mutation, code, message: errors![0]!.message })
      } catch {
        result.unanswered += 1
        target.avoidUntil = Date.now() + AVOID_MS
      }
      isRepeated = true
      await wait(50 + random() * 200)
    }
    throw new Error('The load was over before this could be done')
  }

  const choose = async (): Promise<Target | undefined> => {
    while (!abandoned) {
      const now = Date.now()
      const open = targets().filter(({ avoidUntil }) => avoidUntil <= now)
      if (open.length > 0) return open[Math.floor(random() * open.length)]
      await wait(50)
    }
    return undefined
  }

  type Answer = {
    data?: Record<string, { id: string }>
    errors?: { message: string; extensions: { code: string } }[]
  }

  const post = async (base: string, query: string, variables: object): Promise<Answer> => {
    const url = new URL('/graphql', base)
    const body = JSON.stringify({ query, variables })
    const signed = signRequest({
      method: 'POST',
      url,
      body,
      credentials: world.credentials,
      at: new Date(),
      nonce: randomUUID(),
    })
    const answer = await request(url, {
      method: 'POST',
      dispatcher: agent,
      headers: { ...signed, 'content-type': 'application/json', accept: 'application/json' },
      body,
      signal: AbortSignal.timeout(ANSWER_WITHIN_MS),
    })
    return (await answer.body.json()) as Answer
  }

  const submitNext = async (): Promise<void> => {
    const project = Math.floor(random() * world.projectIds.length)
    const number = quarters[project]!++
    const quarter = `${FIRST_YEAR + Math.floor(number / 4)}-${(number % 4) + 1}`
    const variables = { projectId: world.projectIds[project], quarter, submitterId: world.userId }
    const { id } = await mutate(SUBMIT, variables)
    result.submitted.add(`${project} ${quarter}`)
    if (id && random() < APPROVED_PART) approvable.push(id)
  }

  const approveNext = async (id: string): Promise<void> => {
    await mutate(APPROVE, { id, approverId: world.userId })
    result.approved.add(id)
  }

  const startedAt = performance.now()
  const ticking = setInterval(() => {
    const owed = Math.floor(((performance.now() - startedAt) / 1000) * rate) - issued
    issued += owed
    for (let n = Math.min(owed, MOST_UNDER_WAY_S * rate - underWay.size); n > 0; n--) {
      const id = approvable.pop()
      const one: Promise<void> = (id ? approveNext(id) : submitNext())
        .catch(() => {})
        .finally(() => underWay.delete(one))
      underWay.add(one)
    }
  }, TICK_MS)

  return {
    result,
    /** Adds no more, and resolves when everything under way is done, or after `withinMs`. */
    async stop(withinMs: number): Promise<LoadResult> {
      if (!isOver) clearInterval(ticking)
      isOver = true
      const timer = setTimeout(() => (abandoned = true), withinMs)
      await Promise.all(underWay)
      clearTimeout(timer)
      await agent.destroy()
      return result
    },
  }
}
