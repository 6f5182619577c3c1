import { TidingsError } from '../../shared/errors.ts'
import { type Database, inOneTrip, marks, rows, type Sql } from '../database/connect.ts'
import { dialectOf } from '../database/dialect.ts'
import { CommitInDoubt, transactInTime } from '../database/patience.ts'
import type { Transaction } from '../database/transaction.ts'
import { currentTrace } from '../tracing/tracing.ts'
import { lockAccessTokens, requireUnchanged } from './access-tokens.ts'
import type { Entry } from './audit.ts'
import type { Change } from './change.ts'
import type { AfterCommit, SendableWebhook } from './deliveries.ts'
import { type ProjectEvent, recordTogether } from './events.ts'
import { GroupCommit, LARGEST_GROUP, type Made } from './group-commit.ts'
import { lockLines } from './lines.ts'
import { findWanting, lockWanting, type Wanting } from './matching.ts'
import type { AccessToken } from './permissions.ts'
import {
  decideSubmission,
  findReports,
  insertReports,
  lockReports,
  type Submission,
  submitReports,
  submitted,
  submittedEvent,
} from './project-reports.ts'
import type { ProjectReportRow } from './resources.ts'
import { type Mark, usedOf, useSignatures } from './used-signatures.ts'

// Submitted reports are decided and written by the list: one that is alone is a list of one that waits for what others
// have locked. Those that are submitted at the same time share a transaction (`group-commit.ts`), which waits for
// nobody. What a group leaves out is made alone: what another transaction has a part in, what would be refused, and
// events that go to many webhooks or to one that keeps an order.

/** A submission and who makes it, as accepted with the request. */
type Submitting = {
  token: AccessToken
  submission: Submission
  /** The trace of the request. */
  trace: string | undefined
}

/** A submission with what its request writes into the audit log. */
export type Entering = Submitting & { mark: Mark; entry: Entry }

/** Makes a submission together with others. Resolves to undefined if it has to be made alone. */
export type Submissions = (one: Entering) => Promise<Made<ProjectReportRow> | undefined>

/** A group waits this long for the database. */
const GROUP_MS = 2_000
/** A group that has failed sooner has not waited for a lock, and is tried once more. */
const SOON_MS = 500
/** An event for more webhooks than this would make the others of a group wait. */
const MOST_WEBHOOKS = 16
/** The webhooks that a group reads. If there are more, some project has more than `MOST_WEBHOOKS`. */
const MOST_TOGETHER = LARGEST_GROUP * MOST_WEBHOOKS + 1
/** Reports of a project are submitted alone for so long if its group failed, or its webhooks do not suit a group. */
const ALONE_MS = 5_000

/**
 * Submits the report of a quarter in a transaction of its own, and opens it first if necessary. Throws what refuses it.
 */
export const submitAlone = async (
  { trx, token, now, afterCommit }: Change,
  submission: Submission,
  dueDays: number,
): Promise<ProjectReportRow> => {
  const one = { token, submission, trace: currentTrace() }
  const [decided] = (await decide(trx, [one], { waits: true, now })).decisions
  if (decided instanceof TidingsError) throw decided
  return (await write(trx, [decided!], { now, dueDays, afterCommit }))[0]!
}

/** Projects whose reports are submitted alone for a while. */
class AloneForNow {
  /** Until when, the earliest first. */
  readonly #until = new Map<string, number>()

  has(projectId: string): boolean {
    for (const [id, until] of this.#until) {
      if (until > performance.now()) break
      this.#until.delete(id)
    }
    return this.#until.has(projectId)
  }

  add(projectIds: Iterable<string>): void {
    for (const id of projectIds) {
      this.#until.delete(id)
      this.#until.set(id, performance.now() + ALONE_MS)
    }
  }
}

/** @param given.wake called when something was queued that nobody has taken */
export const createSubmissions = (given: {
  database: Database
  now: () => number
  dueDays: number
  afterCommitOf: (trx: Transaction) => AfterCommit
  wake: () => void
}): Submissions => {
  const { database, afterCommitOf, wake } = given
  const alone = new AloneForNow()

  const commit = async (group: Entering[]): Promise<(Made<ProjectReportRow> | undefined)[]> => {
    let reports = new Map<Entering, ProjectReportRow>()
    let afterCommit: AfterCommit | undefined
    const work = async (trx: Transaction): Promise<void> => {
      reports = new Map()
      afterCommit = afterCommitOf(trx)
      reports = await submitTogether(trx, group, { ...given, afterCommit, alone })
    }
    const made = (doubt?: CommitInDoubt) =>
      group.map(one => {
        const result = reports.get(one)
        return result && { result, ...(doubt && { doubt }) }
      })
    const tryOnce = () => transactInTime(database, work, { forMs: GROUP_MS, isOnce: true })
    const begunAt = performance.now()
    try {
      // What another process has made meanwhile is seen the second time, and left out.
      await tryOnce().catch(error => {
        if (error instanceof CommitInDoubt || performance.now() - begunAt > SOON_MS) throw error
        return tryOnce()
      })
    } catch (error) {
      if (error instanceof CommitInDoubt) return made(error)
      alone.add(group.map(({ submission }) => submission.projectId))
      throw error
    }
    if (reports.size > 0 && !afterCommit?.seesToAll) wake()
    return made()
  }
  const groups = new GroupCommit(commit)
  return one => {
    const isAlone = one.mark.isTwice || !database.dialect.skipsLocked || alone.has(one.submission.projectId)
    return isAlone ? Promise.resolve(undefined) : groups.make(one)
  }
}

/** Submits the reports that nothing hinders, and marks their signatures. Throws if another transaction came between. */
const submitTogether = async (
  trx: Transaction,
  group: Entering[],
  terms: { now: () => number; dueDays: number; afterCommit: AfterCommit; alone: AloneForNow },
): Promise<Map<Entering, ProjectReportRow>> => {
  const apart = firstOfEachReport(group)
  const [used, { decisions, unsuited }] = await inOneTrip([
    usedOf(
      trx,
      apart.map(({ mark }) => mark.signature),
    ),
    decide(trx, apart, { waits: false, now: terms.now }),
  ])
  terms.alone.add(unsuited)
  const chosen = decisions.filter(one => isSubmit(one) && !used.has(one.from.mark.signature)) as Submit<Entering>[]
  if (chosen.length === 0) return new Map()
  const [, reports] = await inOneTrip([
    useSignatures(
      trx,
      chosen.map(({ from }) => from),
    ),
    write(trx, chosen, terms),
  ])
  return new Map(chosen.map(({ from }, n) => [from, reports[n]!]))
}

/**
 * The first submission of each report. The others are decided after it has ended; the same signature among them too,
 * since it covers the submission.
 */
const firstOfEachReport = (group: Entering[]): Entering[] => {
  const keyOf = ({ submission: { projectId, quarter } }: Entering) => `${projectId} ${quarter}`
  return [...new Map(group.toReversed().map(one => [keyOf(one), one])).values()]
}

/** A submission that is to be made. */
type Submit<From extends Submitting = Submitting> = {
  from: From
  organisationId: string
  userName: string
  /** The open report, locked; undefined if the quarter has none. */
  open: ProjectReportRow | undefined
  /** The active webhooks that want the event, locked. */
  webhooks: SendableWebhook[]
}

const isSubmit = <From extends Submitting>(one: Submit<From> | TidingsError | undefined): one is Submit<From> =>
  one !== undefined && !(one instanceof TidingsError)

/**
 * Locks what submissions are decided on, and answers each with what is to be written or with its refusal. With `waits`
 * it waits for other transactions; without, whatever they may have a part in is answered with undefined, or refused for
 * a row that they have locked: such a refusal decides nothing.
 *
 * @returns also the projects whose webhooks do not suit a group, whoever names them: a request that is refused must not
 *   cost the others of each group
 */
const decide = async <From extends Submitting>(
  trx: Transaction,
  group: From[],
  { waits, now }: { waits: boolean; now: () => number },
): Promise<{ decisions: (Submit<From> | TidingsError | undefined)[]; unsuited: Iterable<string> }> => {
  const submissions = group.map(({ submission }) => submission)
  const tokenIds = distinct(group.map(({ token }) => token.id))
  const projectIds = distinct(submissions.map(({ projectId }) => projectId))
  const userIds = distinct(submissions.map(({ submitterId }) => submitterId))
  const event = { type: 'project_report_quarterly_submitted' as const, projectIds }
  const [tokens, projects, users, found, wanting] = await inOneTrip([
    waits ? tokensOf(group) : lockAccessTokens(trx, tokenIds),
    lockRows<{ id: string; organisation_id: string }>(trx, 'projects', projectIds, waits),
    lockRows<{ id: string; name: string }>(trx, 'users', userIds, waits),
    findReports(trx, submissions),
    findWanting(trx, event, waits ? undefined : MOST_TOGETHER),
  ])
  const suited = waits ? projectIds : projectIds.filter(suitsGroups(wanting))
  // Of the others, not all webhooks are known.
  if (!waits && wanting.length === MOST_TOGETHER) return { decisions: [], unsuited: without(projectIds, suited) }
  const [sights, reports, webhooks] = await inOneTrip([
    lockSights(trx, tokens, projects, waits),
    lockReports(
      trx,
      found.filter(({ status }) => status === 'open').map(({ id }) => id),
      waits,
    ),
    lockWanting(
      trx,
      { ...event, projectIds: suited },
      wanting.filter(row => suited.includes(row.project_id)),
      waits,
    ),
  ])
  const facts = { tokens, projects, users, sights, found, reports, webhooks }
  const decisions = group.map(one => decideOne(one, facts, now()))
  return { decisions, unsuited: without(projectIds, [...webhooks.keys()]) }
}

type Locked = {
  tokens: Map<string, AccessToken>
  projects: Map<string, { organisation_id: string }>
  users: Map<string, { name: string }>
  /** Pairs of a token and an organisation that it was created with. */
  sights: Set<string>
  /** The reports as they were found, and those that were open, locked. */
  found: ProjectReportRow[]
  reports: ProjectReportRow[]
  webhooks: Map<string, SendableWebhook[]>
}

const decideOne = <From extends Submitting>(
  from: From,
  { tokens, projects, users, sights, found, reports, webhooks: wanting }: Locked,
  time: number,
): Submit<From> | TidingsError | undefined => {
  const { projectId, quarter, submitterId } = from.submission
  const isReport = (row: ProjectReportRow) => row.project_id === projectId && row.quarter === quarter
  const token = tokens.get(from.token.id)
  const organisationId = projects.get(projectId)?.organisation_id
  const webhooks = wanting.get(projectId)
  const report = found.find(isReport)
  const locked = reports.find(isReport)
  if (!token || !webhooks || (report?.status === 'open' && !locked)) return undefined
  try {
    requireUnchanged(token, from.token, time)
    const decided = decideSubmission(from.submission, {
      token,
      isGranted: sights.has(`${token.id} ${organisationId}`),
      organisationId,
      userName: users.get(submitterId)?.name,
      report: locked ?? report,
    })
    return { from, ...decided, webhooks }
  } catch (error) {
    if (error instanceof TidingsError) return error
    throw error
  }
}

/** Writes the reports, and their events with their deliveries. */
const write = async (
  trx: Transaction,
  chosen: Submit[],
  terms: { now: () => number; dueDays: number; afterCommit: AfterCommit | undefined },
): Promise<ProjectReportRow[]> => {
  const wanted = chosen.flatMap(({ from, webhooks }) =>
    webhooks.map(webhook => ({ webhook, projectId: from.submission.projectId })),
  )
  const { lines, time } = await lockLines(trx, wanted, terms.now)
  const made = chosen.map(({ from, open }) => submitted(from.submission, open, time, terms.dueDays))
  const events = chosen.map(
    ({ from, organisationId, userName, webhooks }, n): ProjectEvent => ({
      event: submittedEvent(made[n]!, organisationId, userName),
      webhooks,
      trace: from.trace,
    }),
  )
  await inOneTrip([
    insertReports(
      trx,
      made.filter((_, n) => !chosen[n]!.open),
    ),
    submitReports(
      trx,
      made.filter((_, n) => chosen[n]!.open),
    ),
    recordTogether(trx, events, time, { lines, afterCommit: terms.afterCommit }),
  ])
  return made
}

/** Whether a project has few webhooks, none of which keeps an order. */
const suitsGroups = (wanting: Wanting[]): ((projectId: string) => boolean) => {
  const byProject = Map.groupBy(wanting, row => row.project_id)
  return projectId => {
    const own = byProject.get(projectId) ?? []
    return own.length <= MOST_WEBHOOKS && own.every(({ ordering }) => ordering === 'none')
  }
}

/** Locks rows by id. All columns: a secondary index that has all that is asked for would be locked instead. */
const lockRows = async <Row extends { id: string }>(
  trx: Sql,
  table: string,
  ids: string[],
  waits: boolean,
): Promise<Map<string, Row>> => {
  const { forShare, forShareSkipLocked } = dialectOf(trx)
  const select = `SELECT * FROM ${table} WHERE id IN (${marks(ids)})${waits ? forShare : forShareSkipLocked}`
  return new Map((await rows<Row>(trx, select, ids)).map(row => [row.id, row]))
}

/** Which of the tokens that see some organisations see those of the projects. */
const lockSights = async (
  trx: Sql,
  tokens: Map<string, AccessToken>,
  projects: Map<string, { organisation_id: string }>,
  waits: boolean,
): Promise<Set<string>> => {
  const { forShare, forShareSkipLocked } = dialectOf(trx)
  const limited = [...tokens.values()].filter(token => !token.seesAllOrganisations).map(({ id }) => id)
  const organisationIds = distinct([...projects.values()].map(row => row.organisation_id))
  if (limited.length === 0 || organisationIds.length === 0) return new Set()
  const found = await rows<{ access_token_id: string; organisation_id: string }>(
    trx,
    `SELECT access_token_id, organisation_id FROM access_token_organisations
     WHERE access_token_id IN (${marks(limited)}) AND organisation_id IN (${marks(organisationIds)})
     ${waits ? forShare : forShareSkipLocked}`,
    [...limited, ...organisationIds],
  )
  return new Set(found.map(row => `${row.access_token_id} ${row.organisation_id}`))
}

/** The transaction of one that waits has locked its token. */
const tokensOf = (group: Submitting[]): Map<string, AccessToken> => new Map(group.map(({ token }) => [token.id, token]))

const without = (ids: string[], others: string[]): string[] => ids.filter(id => !others.includes(id))

const distinct = (ids: string[]): string[] => [...new Set(ids)]
