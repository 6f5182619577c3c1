import type { Knex } from 'knex'
import { TidingsError } from '../../shared/errors.ts'
import { type Database, marks, rows } from '../database/connect.ts'
import { dialectOf } from '../database/dialect.ts'
import { CommitInDoubt, transactInTime } from '../database/patience.ts'
import { lockAccessTokens, requireUnchanged } from './access-tokens.ts'
import type { Entry } from './audit.ts'
import type { AfterCommit, SendableWebhook } from './deliveries.ts'
import { type ProjectEvent, recordTogether } from './events.ts'
import { createGroupCommit, LARGEST_GROUP, type Made, type Turn } from './group-commit.ts'
import { firstWebhooksFor, lockMatched, type Matched } from './matching.ts'
import type { AccessToken } from './permissions.ts'
import {
  decideSubmission,
  findReports,
  insertReports,
  lockOpenReports,
  type Submission,
  submitReports,
  submitted,
  submittedEvent,
} from './project-reports.ts'
import type { ProjectReportRow } from './resources.ts'
import { type Mark, usedOf, useSignatures } from './used-signatures.ts'

// Submitted reports that share a transaction (`group-commit.ts`). The rule and the locks are those of one alone:
// `decideSubmission`, on rows that are read for all at once. A submission is made alone if it would be refused, if
// another transaction has locked one of its rows, or if its event goes to many webhooks or to one that keeps an order.

/** A request that submits a report. */
export type Submitting = {
  token: AccessToken
  mark: Mark
  entry: Entry
  submission: Submission
  trace: string | undefined
}

/** Waits for the turn of a submission. */
export type Submissions = (one: Submitting) => Promise<Turn<ProjectReportRow>>

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

/** @param given.wake called when something was queued that nobody has taken */
export const createSubmissions = (given: {
  database: Database
  now: () => number
  dueDays: number
  afterCommitOf: (trx: Knex.Transaction) => AfterCommit
  wake: () => void
}): Submissions => {
  const { database, now, dueDays, afterCommitOf, wake } = given
  /** Projects, and until when their reports are submitted alone, the earliest first. */
  const alone = new Map<string, number>()
  const leaveAlone = (projectIds: Iterable<string>): void => {
    const until = performance.now() + ALONE_MS
    for (const id of projectIds) {
      alone.delete(id)
      alone.set(id, until)
    }
  }

  const commit = async (group: Submitting[]): Promise<(Made<ProjectReportRow> | undefined)[]> => {
    let reports: Submitted = new Map()
    let afterCommit: AfterCommit | undefined
    const work = async (trx: Knex.Transaction): Promise<void> => {
      reports = new Map()
      afterCommit = afterCommitOf(trx)
      reports = await submitTogether(trx, group, { now, dueDays, afterCommit, leaveAlone })
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
      leaveAlone(group.map(({ submission }) => submission.projectId))
      throw error
    }
    if (reports.size > 0 && !afterCommit?.seesToAll) wake()
    return made()
  }
  const isAlone = ({ submission, mark }: Submitting): boolean => {
    for (const [id, until] of alone) {
      if (until > performance.now()) break
      alone.delete(id)
    }
    return mark.isTwice || !database.dialect.skipsLocked || alone.has(submission.projectId)
  }
  const enter = createGroupCommit(commit)
  return one => (isAlone(one) ? Promise.resolve({ leave() {} }) : enter(one))
}

type Submitted = Map<Submitting, ProjectReportRow>

const keyOf = ({ projectId, quarter }: Submission): string => `${projectId} ${quarter}`

/** Submits the reports that nothing hinders. Throws (contention, duplicate) if another transaction was in between. */
const submitTogether = async (
  trx: Knex.Transaction,
  group: Submitting[],
  {
    now,
    dueDays,
    afterCommit,
    leaveAlone,
  }: {
    now: () => number
    dueDays: number
    afterCommit: AfterCommit
    leaveAlone: (projectIds: Iterable<string>) => void
  },
): Promise<Submitted> => {
  const apart = firstOfEach(
    firstOfEach(group, ({ mark }) => mark.signature),
    ({ submission }) => keyOf(submission),
  )
  const { able, crowded, time } = await decide(trx, apart, now)
  const chosen = able.filter(({ webhooks }) => webhooks)
  // The crowded ones whoever names them: a request that is refused must not cost the others of each group.
  leaveAlone([...crowded, ...able.filter(({ webhooks }) => !webhooks).map(({ projectId }) => projectId)])
  if (chosen.length === 0) return new Map()

  const made = chosen.map(({ from, open }) => submitted(from.submission, open, time, dueDays))
  const events = chosen.map(
    ({ from, organisationId, userName, webhooks }, n): ProjectEvent => ({
      event: submittedEvent(made[n]!, organisationId, userName),
      webhooks: webhooks!,
      trace: from.trace,
    }),
  )
  await Promise.all([
    useSignatures(
      trx,
      chosen.map(({ from }) => from),
    ),
    insertReports(
      trx,
      made.filter((_, n) => !chosen[n]!.open),
    ),
    submitReports(
      trx,
      made.filter((_, n) => chosen[n]!.open),
    ),
    recordTogether(trx, events, time, afterCommit),
  ])
  return new Map(chosen.map(({ from }, n) => [from, made[n]!]))
}

type Able = {
  from: Submitting
  projectId: string
  organisationId: string
  userName: string
  /** The open report, locked; undefined if the quarter has none. */
  open: ProjectReportRow | undefined
  /** The active webhooks that want the event, locked; undefined if that cannot be said at once. */
  webhooks: SendableWebhook[] | undefined
}

/**
 * Locks what the submissions are decided on, except what another transaction has locked.
 *
 * @returns those that may be made; the projects that have too many webhooks for a group; and the time of the events,
 *   later than the last change of each webhook
 */
const decide = async (
  trx: Knex.Transaction,
  group: Submitting[],
  now: () => number,
): Promise<{ able: Able[]; crowded: Set<string>; time: number }> => {
  const { forShareSkipLocked } = dialectOf(trx)
  // All columns: a secondary index that has all that is asked for would be locked in place of the row.
  const lockedRows = <Row>(table: string, ids: string[]) =>
    rows<Row>(trx, `SELECT * FROM ${table} WHERE id IN (${marks(ids)})${forShareSkipLocked}`, ids)
  const distinct = (id: (one: Submitting) => string): string[] => [...new Set(group.map(id))]
  const tokenIds = distinct(({ token }) => token.id)
  const projectIds = distinct(({ submission }) => submission.projectId)
  const userIds = distinct(({ submission }) => submission.submitterId)
  const signatures = distinct(({ mark }) => mark.signature)
  const submissions = group.map(({ submission }) => submission)

  const [tokens, projects, users, used, found, wanting] = await Promise.all([
    lockAccessTokens(trx, tokenIds),
    lockedRows<{ id: string; organisation_id: string }>('projects', projectIds),
    lockedRows<{ id: string; name: string }>('users', userIds),
    usedOf(trx, signatures),
    findReports(trx, submissions),
    firstWebhooksFor(trx, { type: 'project_report_quarterly_submitted', projectIds }, MOST_TOGETHER),
  ])
  const crowded = crowdedOf(wanting)
  if (wanting.length === MOST_TOGETHER) return { able: [], crowded, time: now() }
  const unsuited = new Set(wanting.filter(({ ordering }) => ordering !== 'none').map(row => row.project_id)).union(
    crowded,
  )
  const limited = [...tokens.values()].filter(token => !token.seesAllOrganisations).map(({ id }) => id)
  const openIds = found.filter(({ status }) => status === 'open').map(({ id }) => id)
  const [sights, open, webhooks] = await Promise.all([
    sightsOf(trx, limited, projects),
    lockOpenReports(trx, openIds),
    lockMatched(
      trx,
      wanting.filter(row => !unsuited.has(row.project_id)),
      projectIds.filter(id => !unsuited.has(id)),
    ),
  ])
  const time = now()

  const organisations = new Map(projects.map(row => [row.id, row.organisation_id]))
  const names = new Map(users.map(row => [row.id, row.name]))
  const ableOf = (from: Submitting): Able | undefined => {
    const { projectId, quarter, submitterId } = from.submission
    const token = tokens.get(from.token.id)
    if (!token || used.has(from.mark.signature)) return undefined
    requireUnchanged(token, from.token, time)
    const organisationId = organisations.get(projectId)
    const isReport = (row: ProjectReportRow) => row.project_id === projectId && row.quarter === quarter
    const report = found.find(isReport)
    const locked = open.find(isReport)
    // Another transaction has it.
    if (report?.status === 'open' && !locked) return undefined
    const decided = decideSubmission(from.submission, {
      token,
      isGranted: sights.has(`${token.id} ${organisationId}`),
      organisationId,
      userName: names.get(submitterId),
      report: locked ?? report,
    })
    return { from, projectId, ...decided, webhooks: webhooks.get(projectId) }
  }
  const able = group.flatMap(from => {
    try {
      return ableOf(from) ?? []
    } catch (error) {
      // Refused by a rule, perhaps for a row that another transaction has locked: it is decided again, alone.
      if (error instanceof TidingsError) return []
      throw error
    }
  })
  return { able, crowded, time }
}

const crowdedOf = (wanting: Matched[]): Set<string> => {
  const byProject = Map.groupBy(wanting, row => row.project_id)
  return new Set([...byProject].filter(([, own]) => own.length > MOST_WEBHOOKS).map(([id]) => id))
}

/** The pairs of a token and an organisation that it sees, among those of the projects. */
const sightsOf = async (
  trx: Knex.Transaction,
  tokenIds: string[],
  projects: { organisation_id: string }[],
): Promise<Set<string>> => {
  const organisationIds = [...new Set(projects.map(row => row.organisation_id))]
  if (tokenIds.length === 0 || organisationIds.length === 0) return new Set()
  const found = await rows<{ access_token_id: string; organisation_id: string }>(
    trx,
    `SELECT access_token_id, organisation_id FROM access_token_organisations
     WHERE access_token_id IN (${marks(tokenIds)}) AND organisation_id IN (${marks(organisationIds)})
     ${dialectOf(trx).forShareSkipLocked}`,
    [...tokenIds, ...organisationIds],
  )
  return new Set(found.map(row => `${row.access_token_id} ${row.organisation_id}`))
}

/** The first change with each key. The others are decided after it has ended. */
const firstOfEach = (group: Submitting[], key: (one: Submitting) => string): Submitting[] => [
  ...new Map(group.toReversed().map(one => [key(one), one])).values(),
]
