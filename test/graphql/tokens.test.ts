import assert from 'node:assert/strict'
import { randomBytes, randomUUID } from 'node:crypto'
import { after, before, it } from 'node:test'
import { findByApiKeys, lockAccessToken } from '../../server/domain/access-tokens.ts'
import { createLog } from '../../server/log.ts'
import { runSchedule } from '../../server/scheduler/scheduler.ts'
import type { Credentials } from '../../shared/hmac.ts'
import { toIso } from '../../shared/time.ts'
import { testClock } from '../support/clock.ts'
import { describeEachEngine } from '../support/databases.ts'
import { addProject, startTestServer, type TestServer } from '../support/server.ts'

const CREATE = `mutation(
  $name: String!, $permissions: [Permission!]!, $organisationIds: [UUID!], $expiresAt: DateTime) {
  createAccessToken(name: $name, permissions: $permissions, organisationIds: $organisationIds, expiresAt: $expiresAt) {
    apiKey secret accessToken { id name apiKey permissions seesAllOrganisations organisationIds organisations { id }
      expiresAt revokedAt lastUsedAt createdAt } } }`

describeEachEngine('access tokens', engine => {
  let server: TestServer
  const clock = testClock()
  before(async () => {
    server = await startTestServer(engine, { env: { TIDINGS_ROLES: 'api', TIDINGS_RATE_LIMIT: '0' }, clock })
  })
  after(() => server.stop())

  const create = async (given: object, as?: Credentials) => {
    const { data, errors } = await server.graphql(CREATE, { name: 'new', permissions: ['read'], ...given }, as)
    assert.equal(errors, undefined, JSON.stringify(errors))
    const { apiKey, secret, accessToken } = data.createAccessToken
    return { credentials: { apiKey, apiSecret: secret } as Credentials, accessToken }
  }
  const codeOf = async (given: object, as?: Credentials) => {
    const { errors } = await server.graphql(CREATE, { name: 'new', permissions: ['read'], ...given }, as)
    return errors?.[0]?.extensions.code
  }

  it('are made with what was given, and work at once', async () => {
    const { organisationId } = await addProject(server.database)
    const expiresAt = toIso(clock.now() + 3_600_000)
    const given = { name: 'ci', permissions: ['webhooks', 'read'], organisationIds: [organisationId], expiresAt }
    const { credentials, accessToken } = await create(given)
    const { id, ...told } = accessToken
    assert.deepEqual(told, {
      name: 'ci',
      apiKey: credentials.apiKey,
      permissions: ['read', 'webhooks'],
      seesAllOrganisations: false,
      organisationIds: [organisationId],
      organisations: [{ id: organisationId }],
      expiresAt,
      revokedAt: null,
      lastUsedAt: null,
      createdAt: toIso(clock.now()),
    })
    assert.equal(Buffer.from(credentials.apiSecret, 'base64').length, 32)
    const { data } = await server.graphql('{ viewer { id name } organisations { id } }', {}, credentials)
    assert.deepEqual(data, { viewer: { id, name: 'ci' }, organisations: [{ id: organisationId }] })
  })

  it('are listed each with its own organisations, alone and with others', async () => {
    const made: { id: string; organisationId: string }[] = []
    for (const { organisationId } of [await addProject(server.database), await addProject(server.database)]) {
      const { accessToken } = await create({ organisationIds: [organisationId] })
      made.push({ id: accessToken.id, organisationId })
    }
    const document = 'query($query: MangoQuery) { accessTokens(query: $query) { organisations { id } } }'
    for (const asked of [made, ...made.map(one => [one])]) {
      const query = { selector: { id: { $in: asked.map(({ id }) => id) } }, sort: ['id'] }
      const { data } = await server.graphql(document, { query })
      assert.deepEqual(
        data.accessTokens.map(({ organisations }: { organisations: object }) => organisations),
        asked.map(({ organisationId }) => [{ id: organisationId }]),
      )
    }
  })

  it('end at a time that is given for it, and an earlier end stays', async () => {
    const { credentials, accessToken } = await create({})
    const end = async (at: number) => {
      const document =
        'mutation($id: UUID!, $at: DateTime) { revokeAccessToken(id: $id, at: $at) { expiresAt revokedAt } }'
      const { data, errors } = await server.graphql(document, { id: accessToken.id, at: toIso(at) })
      return errors?.[0]?.extensions.code ?? data.revokeAccessToken
    }
    const at = clock.now() + 60_000
    assert.deepEqual(await end(at), { expiresAt: toIso(at), revokedAt: null })
    assert.deepEqual(await end(at + 1), { expiresAt: toIso(at), revokedAt: null })
    assert.equal(await end(clock.now()), 'BAD_USER_INPUT')
    const { data } = await server.graphql('{ viewer { id } }', {}, credentials)
    assert.equal(data.viewer.id, accessToken.id)
    await server.graphql('mutation($id: UUID!) { revokeAccessToken(id: $id) { id } }', { id: accessToken.id })
  })

  it('keep no end that is given for them once they are revoked', async () => {
    const { accessToken } = await create({})
    const end = async (at?: string) => {
      const document =
        'mutation($id: UUID!, $at: DateTime) { revokeAccessToken(id: $id, at: $at) { expiresAt revokedAt } }'
      return (await server.graphql(document, { id: accessToken.id, at })).data.revokeAccessToken
    }
    const revoked = await end()
    assert.deepEqual(await end(toIso(clock.now() + 60_000)), { expiresAt: null, revokedAt: revoked.revokedAt })
  })

  it('that name thousands of unknown organisations are refused with the first of them', async () => {
    const organisationIds = Array.from({ length: 5_000 }, () => randomUUID())
    const { errors } = await server.graphql(CREATE, { name: 'new', permissions: ['read'], organisationIds })
    const { extensions } = errors![0]!
    assert.equal(extensions.code, 'NOT_FOUND')
    assert.deepEqual(extensions.ids, organisationIds.slice(0, 1_000))
  })

  it('keep their secret sealed: it is nowhere in the database', async () => {
    const { credentials } = await create({})
    const rows = await server.database.knex('access_tokens')
    assert.ok(!JSON.stringify(rows).includes(credentials.apiSecret))
  })

  it('see all organisations where none are named, and none where the list is empty', async () => {
    await addProject(server.database)
    const count = async (given: object) => {
      const { credentials, accessToken } = await create(given)
      const { data } = await server.graphql('{ organisations { id } }', {}, credentials)
      return [accessToken.seesAllOrganisations, data.organisations.length > 0]
    }
    assert.deepEqual(await count({}), [true, true])
    assert.deepEqual(await count({ organisationIds: [] }), [false, false])
  })

  it('are not made with a wrong argument, and nothing of them is left', async () => {
    const before = await server.database.knex('access_tokens').count({ n: '*' })
    const wrong: [object, string][] = [
      [{ name: ' ' }, 'BAD_USER_INPUT'],
      [{ name: 'x'.repeat(256) }, 'BAD_USER_INPUT'],
      [{ permissions: [] }, 'BAD_USER_INPUT'],
      [{ organisationIds: null }, 'BAD_USER_INPUT'],
      [{ permissions: ['write'] }, 'BAD_USER_INPUT'],
      [{ expiresAt: toIso(clock.now()) }, 'BAD_USER_INPUT'],
      [{ expiresAt: '2026-02-30T00:00:00Z' }, 'BAD_USER_INPUT'],
      [{ expiresAt: '2026-99-99T00:00:00Z' }, 'BAD_USER_INPUT'],
      [{ expiresAt: '2099-01-01' }, 'BAD_USER_INPUT'],
      [{ organisationIds: null }, 'BAD_USER_INPUT'],
      [{ organisationIds: ['01936f2e-5d2f-7c3a-9b1e-2f4d6c8a0e12'] }, 'NOT_FOUND'],
    ]
    for (const [given, code] of wrong) assert.equal(await codeOf(given), code, JSON.stringify(given))
    assert.deepEqual(await server.database.knex('access_tokens').count({ n: '*' }), before)
  })

  it('of a thousand organisations can be made', async () => {
    const organisations = Array.from({ length: 1_000 }, (_, n) => ({
      id: `01936f2e-5d2f-7c3a-9b1e-${String(n).padStart(12, '0')}`,
      name: `Org ${n}`,
      created_at: 0,
      updated_at: 0,
    }))
    await server.database.knex.batchInsert('organisations', organisations, 100)
    const organisationIds = organisations.map(({ id }) => id)
    const { accessToken } = await create({ organisationIds })
    assert.deepEqual(accessToken.organisationIds, organisationIds)
  })

  it('give no more than their maker has', async () => {
    const { organisationId } = await addProject(server.database)
    const other = await addProject(server.database)
    const { credentials } = await create({ permissions: ['admin'], organisationIds: [organisationId] })
    assert.equal(await codeOf({}, credentials), 'FORBIDDEN')
    assert.equal(await codeOf({ organisationIds: [] }, credentials), 'FORBIDDEN', 'it could neither see nor revoke it')
    assert.equal(await codeOf({ organisationIds: [organisationId, other.organisationId] }, credentials), 'NOT_FOUND')
    assert.equal(await codeOf({ organisationIds: [organisationId] }, credentials), undefined)
    const { credentials: reader } = await create({})
    assert.equal(await codeOf({}, reader), 'FORBIDDEN')
  })

  it('are refused from the moment they are revoked, and stay as they were when they are revoked again', async () => {
    const { credentials, accessToken } = await create({})
    const revoke = () => server.graphql(`mutation { revokeAccessToken(id: "${accessToken.id}") { id revokedAt } }`)
    const at = toIso(clock.now())
    assert.deepEqual((await revoke()).data.revokeAccessToken, { id: accessToken.id, revokedAt: at })
    const { status, errors } = await server.graphql('{ viewer { id } }', {}, credentials)
    assert.equal(status, 401)
    assert.equal(errors![0]!.extensions.reason, 'revoked')
    clock.advance(1_000)
    assert.equal((await revoke()).data.revokeAccessToken.revokedAt, at)
  })

  it('are refused what they may no longer do, also where they were accepted before', async () => {
    const { database } = server
    const { accessToken } = await create({ permissions: ['read', 'reports'] })
    const accepted = (await findByApiKeys(database.knex, [accessToken.apiKey])).get(accessToken.apiKey)!.token
    const change = () => database.transaction(trx => lockAccessToken(trx, accepted, clock.now))
    assert.deepEqual((await change()).token.permissions.toSorted(), ['read', 'reports'])
    const lost = { access_token_id: accepted.id, permission: 'reports' }
    await database.knex('access_token_permissions').where(lost).delete()
    await assert.rejects(change(), { code: 'FORBIDDEN', details: { permission: 'reports' } })
  })

  it('tell when they were last used, to the minute', async () => {
    const { credentials, accessToken } = await create({})
    const lastUsedAt = async () => {
      const query = { selector: { id: accessToken.id } }
      const { data } = await server.graphql(
        'query($query: MangoQuery) { accessTokens(query: $query) { lastUsedAt } }',
        { query },
      )
      return data.accessTokens[0].lastUsedAt
    }
    assert.equal(await lastUsedAt(), null)
    await server.graphql('{ viewer { id } }', {}, credentials)
    const first = toIso(clock.now())
    assert.equal(await lastUsedAt(), first)
    clock.advance(59_000)
    await server.graphql('{ viewer { id } }', {}, credentials)
    assert.equal(await lastUsedAt(), first)
    clock.advance(1_000)
    await server.graphql('{ viewer { id } }', {}, { ...credentials, apiSecret: randomBytes(32).toString('base64') })
    assert.equal(await lastUsedAt(), first, 'a request that is refused is no use')
    await server.graphql('{ viewer { id } }', {}, credentials)
    assert.equal(await lastUsedAt(), toIso(clock.now()))
  })

  it('expire with one event, however many schedulers look, and a revoked one with none', async () => {
    const { organisationId } = await addProject(server.database)
    const others = await addProject(server.database)
    const expiresAt = toIso(clock.now() + 1_000)
    const made = {
      one: await create({ organisationIds: [organisationId], expiresAt }),
      two: await create({ organisationIds: [organisationId, others.organisationId], expiresAt }),
      all: await create({ expiresAt }),
      revoked: await create({ expiresAt }),
    }
    await server.graphql(`mutation { revokeAccessToken(id: "${made.revoked.accessToken.id}") { id } }`)
    const { database } = server
    const tools = {
      database,
      clock,
      log: createLog('silent'),
      reportDueDays: 30,
      retentionDays: 30,
      onEvents: () => {},
    }
    const events = async () => {
      const rows: { payload: string; organisation_id: string | null; all_organisations: number }[] = await database
        .knex('events')
        .where('type', 'token_expired')
      return rows.map(row => [JSON.parse(row.payload).accessTokenId, row.organisation_id, row.all_organisations]).sort()
    }
    await runSchedule(tools)
    assert.deepEqual(await events(), [], 'before its time')
    clock.advance(1_000)
    await Promise.all([runSchedule(tools), runSchedule(tools), runSchedule(tools)])
    await runSchedule(tools)
    assert.deepEqual(
      await events(),
      [
        [made.one.accessToken.id, organisationId, 0],
        [made.two.accessToken.id, null, 0],
        [made.all.accessToken.id, null, 1],
      ].sort(),
    )
    const { status, errors } = await server.graphql('{ viewer { id } }', {}, made.one.credentials)
    assert.equal(status, 401)
    assert.equal(errors![0]!.extensions.reason, 'expired')
  })

  it('rotate the signing key: the new one is published at once and signs later', async () => {
    const document = 'mutation { rotateSigningKey { kid publicJwk createdAt activeFrom } }'
    const { data } = await server.graphql(document)
    const { kid, publicJwk, createdAt, activeFrom } = data.rotateSigningKey
    const { keys } = (await (await fetch(`${server.url}/.well-known/jwks.json`)).json()) as { keys: { kid: string }[] }
    assert.ok(keys.length >= 2)
    assert.deepEqual(
      keys.find(key => key.kid === kid),
      publicJwk,
    )
    assert.deepEqual(Object.keys(publicJwk).sort(), ['alg', 'crv', 'kid', 'kty', 'use', 'x'])
    assert.ok(Date.parse(activeFrom) - Date.parse(createdAt) >= 600_000)
  })
})
