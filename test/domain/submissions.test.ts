import assert from 'node:assert/strict'
import { randomBytes, randomUUID } from 'node:crypto'
import { after, before, it } from 'node:test'
import { rows } from '../../server/database/connect.ts'
import { unavailable } from '../../server/database/patience.ts'
import { accessTokenOf, createAccessToken, lockAccessToken } from '../../server/domain/access-tokens.ts'
import { CONDITIONS } from '../../server/domain/matching.ts'
import type { AccessToken } from '../../server/domain/permissions.ts'
import type { Submission } from '../../server/domain/project-reports.ts'
import type { ProjectReportRow } from '../../server/domain/resources.ts'
import { createSubmissions, type Submissions, submitAlone } from '../../server/domain/submissions.ts'
import {
  CarryingSignature,
  newMark,
  type TransactWithin,
  useSignature,
  useSignatures,
} from '../../server/domain/used-signatures.ts'
import { createSealer } from '../../server/keys/seal.ts'
import type { TidingsError } from '../../shared/errors.ts'
import type { Permission } from '../../shared/vocabulary.ts'
import { describeEachEngine, migratedDatabase, type TestDatabase } from '../support/databases.ts'
import { addProject } from '../support/server.ts'
import { addWebhook, type GivenWebhook } from '../support/webhooks.ts'

// Who may submit which report, and which webhooks receive its event: decided for a submission alone, and among 24 that
// share a transaction. Both must say the same.

const NOW = 1_795_221_601_123
const AT_ONCE = 24

type Asked = { token: AccessToken; submission: Submission }
type Project = Awaited<ReturnType<typeof addProject>>
/** The made report, or the code of the refusal and the ids that it names. */
type Said = { report: ProjectReportRow } | { refused: string }

describeEachEngine('a submitted report', engine => {
  let given: TestDatabase
  let acme: Project
  let sibling: Project
  let borealis: Project
  let all: AccessToken
  let ofAcme: AccessToken
  let together: Submissions
  let year = 2000
  before(async () => {
    given = await migratedDatabase(engine)
    const { database } = given
    acme = await addProject(database)
    borealis = await addProject(database)
    sibling = { ...acme, projectId: randomUUID() }
    const row = await database.knex('projects').where('id', acme.projectId).first()
    await database.knex('projects').insert({ ...row, id: sibling.projectId })
    all = await token()
    ofAcme = await token({ organisationIds: [acme.organisationId] })
    together = createSubmissions({
      database,
      now: () => NOW,
      dueDays: 30,
      afterCommitOf: () => ({ take: () => new Map(), seesToAll: false }),
      wake: () => {},
    })
  })
  after(() => given?.drop())

  const token = async (more: { permissions?: Permission[]; organisationIds?: string[] } = {}): Promise<AccessToken> => {
    const { database } = given
    const { permissions = ['reports'], organisationIds } = more
    const { id } = await database.transaction(trx =>
      createAccessToken(trx, createSealer([randomBytes(32)]), { name: 'test', permissions, organisationIds }, NOW),
    )
    return accessTokenOf(await database.knex('access_tokens').where({ id }).first(), permissions)
  }
  const of = ({ projectId, userId }: Project): Submission => ({
    ...{ projectId, submitterId: userId },
    quarter: `${year++}-1`,
  })

  const alone = async ({ token, submission }: Asked): Promise<Said> => {
    try {
      const report = await given.database.transaction(async trx => {
        const locked = await lockAccessToken(trx, token, () => NOW)
        return submitAlone({ trx, token: locked.token, now: () => NOW }, submission, 30)
      })
      return { report }
    } catch (error) {
      const { code, details } = error as TidingsError<'UNAUTHENTICATED'>
      return { refused: [code, details?.reason].filter(Boolean).join(' ') }
    }
  }

  const enter = (one: Asked, signature: string = randomUUID()) => {
    const entry = { accessTokenId: one.token.id, operation: 'test', arguments: '{}', requestId: randomUUID() }
    return together({ ...one, mark: newMark(signature, NOW, false), entry, trace: undefined })
  }

  /** What the group leaves is then made alone, as a request does. */
  const inGroup = async (one: Asked): Promise<{ said: Said; isShared: boolean }> => {
    const made = await enter(one)
    return { said: made ? { report: made.result } : await alone(one), isShared: made !== undefined }
  }

  /** Asked with others, that are all made. */
  const amongOthers = async (asked: Asked[]): Promise<Said[]> => {
    const others = Array.from({ length: AT_ONCE - asked.length }, () => ({ token: all, submission: of(borealis) }))
    const ended = await Promise.all([...asked, ...others].map(inGroup))
    if (given.database.dialect.skipsLocked) {
      assert.ok(
        ended.slice(asked.length).every(({ isShared }) => isShared),
        'the others share a transaction',
      )
    }
    return ended.slice(0, asked.length).map(({ said }) => said)
  }
  const oneByOne =
    (submit: (one: Asked) => Promise<Said>) =>
    async (asked: Asked[]): Promise<Said[]> => {
      const said: Said[] = []
      for (const one of asked) said.push(await submit(one))
      return said
    }

  const ways = {
    alone: oneByOne(alone),
    'in a group of one': oneByOne(async one => (await inGroup(one)).said),
    [`among ${AT_ONCE} at once`]: amongOthers,
  }

  const eventOf = async (said: Said | undefined): Promise<string> => {
    assert.ok(said && 'report' in said, JSON.stringify(said))
    const found = await given.database.knex('events').where('payload', 'like', `%${said.report.id}%`)
    assert.equal(found.length, 1)
    return found[0].id
  }

  /** Webhooks by name, each with the conditions that keep it from the event of Acme's project. */
  const table = async () => {
    const { knex } = given.database
    const ofBorealis = await token({ organisationIds: [borealis.organisationId] })
    const ofNothing = await token({ organisationIds: [] })
    const organisationIds = [acme.organisationId]
    const other = { organisationIds: [borealis.organisationId], projectIds: [borealis.projectId] }
    const webhooks: [fails: string[], webhook: Partial<GivenWebhook>, change?: object][] = [
      [[], {}],
      [[], { organisationIds }],
      [[], { organisationIds, projectIds: [borealis.projectId] }],
      [[], { organisationIds: [borealis.organisationId], projectIds: [acme.projectId] }],
      [[], { events: ['project_report_quarterly_submitted', 'token_expired'] }],
      [[], { accessTokenId: ofAcme.id }],
      [[], { accessTokenId: ofAcme.id, projectIds: [acme.projectId] }],
      [['scope'], other],
      [['scope'], { projectIds: [sibling.projectId] }],
      [['type'], { events: ['project_report_quarterly_approved'], organisationIds }],
      [['organisation', 'project'], { accessTokenId: ofBorealis.id }],
      [['organisation', 'project'], { accessTokenId: ofBorealis.id, organisationIds }],
      [['organisation', 'project'], { accessTokenId: ofNothing.id, projectIds: [acme.projectId] }],
      [['active'], { status: 'inactive' }],
      [['active'], { status: 'disabled', organisationIds }],
      [['existing', 'active'], { status: 'disabled' }, { deleted_at: NOW }],
    ]
    const byId = new Map<string, string[]>()
    for (const [fails, webhook, change] of webhooks) {
      const id = await addWebhook(knex, { accessTokenId: all.id, createdAt: NOW, ...webhook })
      if (change) await knex('webhooks').where({ id }).update(change)
      byId.set(id, fails)
    }
    return byId
  }

  it('has in a transaction of its own what is left of ten seconds after a group that did not make it', async test => {
    let now = 0
    test.mock.method(performance, 'now', () => now)
    const times: unknown[] = []
    const transact: TransactWithin = async (_work, forMs) => {
      times.push(forMs)
      throw unavailable()
    }
    const signature = new CarryingSignature(newMark(randomUUID(), NOW, false))
    const afterGroup = signature.carry(
      transact,
      async () => {},
      undefined,
      async () => {
        now += 2_000
        return undefined
      },
    )
    await assert.rejects(afterGroup, { code: 'UNAVAILABLE' })
    assert.deepEqual(times, [8_000])
  })

  it('is marked, among others of a transaction, in the order of their ids, which leaves pages full', async () => {
    const marks = Array.from({ length: AT_ONCE }, () => newMark(randomUUID(), NOW, false))
    const written: unknown[] = []
    const note = ({ bindings = [] }: { bindings?: unknown[] }) => written.push(...bindings)
    const { knex } = given.database
    knex.on('query', note)
    await given.database.transaction(trx =>
      useSignatures(
        trx,
        marks.toReversed().map(mark => ({ mark })),
      ),
    )
    knex.removeListener('query', note)
    const ids = marks.map(({ id }) => id)
    assert.deepEqual(
      written.filter(value => ids.includes(value as string)),
      ids,
    )
  })

  it('is left out of its transaction where its signature was used before, and the others are made', async () => {
    if (!given.database.dialect.skipsLocked) return
    const used = newMark(randomUUID(), NOW, false)
    await useSignature(given.database.knex, used)
    const asked = Array.from({ length: AT_ONCE }, () => ({ token: all, submission: of(borealis) }))
    const made = await Promise.all(asked.map((one, n) => enter(one, n === 0 ? used.signature : undefined)))
    assert.deepEqual(
      made.map(one => one !== undefined),
      asked.map((_, n) => n > 0),
    )
  })

  for (const [way, submit] of Object.entries(ways)) {
    it(`${way} goes to the webhooks that want it, and the conditions by name say why not to others`, async () => {
      const { knex } = given.database
      const byId = await table()
      try {
        const [ofAcmes, ofSibling] = await submit([
          { token: ofAcme, submission: of(acme) },
          { token: all, submission: of(sibling) },
        ])
        const eventId = await eventOf(ofAcmes)
        const sent = await knex('deliveries').where({ event_id: eventId }).pluck('webhook_id')
        const wanted = [...byId].filter(([, fails]) => fails.length === 0).map(([id]) => id)
        assert.deepEqual(sent.toSorted(), wanted.toSorted())

        const later = await addWebhook(knex, { accessTokenId: all.id, createdAt: NOW + 1 })
        byId.set(later, ['created'])
        const columns = Object.entries(CONDITIONS).map(
          ([name, sql]) => `CASE WHEN ${sql} THEN 1 ELSE 0 END AS ${name}_`,
        )
        const explained = await rows<Record<string, unknown> & { id: string }>(
          knex,
          `SELECT w.id, ${columns.join(', ')} FROM webhooks w JOIN access_tokens t ON t.id = w.access_token_id
           JOIN events e ON e.id = ?`,
          [eventId],
        )
        for (const row of explained) {
          const fails = Object.keys(CONDITIONS).filter(name => Number(row[`${name}_`]) !== 1)
          assert.deepEqual(fails, byId.get(row.id))
        }
        const project = await knex('deliveries')
          .where({ event_id: await eventOf(ofSibling) })
          .pluck('webhook_id')
        const ofProjects = [...byId.keys()].filter(id => project.includes(id) !== sent.includes(id))
        assert.equal(ofProjects.length, 3, 'two name the one project, one the other')
      } finally {
        for (const name of ['webhook_events', 'webhook_organisations', 'webhook_projects', 'webhooks']) {
          await knex(name).delete()
        }
      }
    })

    it(`${way} is refused by what its token may not or does not see, as it stands when it is done`, async () => {
      const { knex } = given.database
      const changed = async (change: object): Promise<AccessToken> => {
        const made = await token()
        await knex('access_tokens').where({ id: made.id }).update(change)
        return made
      }
      /** Was accepted with `reports`, and has only this permission by now. */
      const withOnly = async (permission: Permission): Promise<AccessToken> => {
        const made = await token()
        await knex('access_token_permissions').where({ access_token_id: made.id }).update({ permission })
        return made
      }
      const lost = await token({ organisationIds: [acme.organisationId] })
      await knex('access_token_organisations').where({ access_token_id: lost.id }).delete()
      const again = of(acme)
      assert.ok('report' in (await alone({ token: all, submission: again })))
      const cases: [AccessToken, Submission, string][] = [
        [ofAcme, of(acme), 'done'],
        [await changed({ revoked_at: NOW }), of(acme), 'UNAUTHENTICATED revoked'],
        [await changed({ expires_at: NOW }), of(acme), 'UNAUTHENTICATED expired'],
        [await changed({ expires_at: NOW + 1 }), of(acme), 'done'],
        [await withOnly('read'), of(acme), 'FORBIDDEN'],
        [await withOnly('webhooks'), of(acme), 'FORBIDDEN'],
        [await withOnly('admin'), of(acme), 'done'],
        [lost, of(acme), 'NOT_FOUND'],
        [ofAcme, of(borealis), 'NOT_FOUND'],
        [all, { ...of(acme), projectId: randomUUID() }, 'NOT_FOUND'],
        [all, { ...of(acme), submitterId: randomUUID() }, 'NOT_FOUND'],
        [all, again, 'CONFLICT'],
      ]
      const said = await submit(cases.map(([token, submission]) => ({ token, submission })))
      assert.deepEqual(
        said.map(one => ('refused' in one ? one.refused : 'done')),
        cases.map(([, , code]) => code),
      )
      for (const [n, [, { projectId, quarter }, code]] of cases.entries()) {
        const made = await knex('project_reports').where({ project_id: projectId, quarter })
        assert.equal(made.length, code === 'done' || code === 'CONFLICT' ? 1 : 0, String(n))
      }
    })
  }
})
