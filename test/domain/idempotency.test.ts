import assert from 'node:assert/strict'
import { randomBytes, randomUUID } from 'node:crypto'
import { after, before, it } from 'node:test'
import { type Answer, Claim, claimKey, deleteExpiredKeys, KEPT_MS, LEASE_MS } from '../../server/domain/idempotency.ts'
import { createSealer } from '../../server/keys/seal.ts'
import { TidingsError } from '../../shared/errors.ts'
import { testClock } from '../support/clock.ts'
import { describeEachEngine, migratedDatabase, type TestDatabase } from '../support/databases.ts'
import { eventually } from '../support/eventually.ts'

const body = Buffer.from('{"query":"mutation { upsertUser(name: "Ada") { id } }"}')
const answer: Answer = { status: 200, contentType: 'application/json', body: '{"data":null}' }

const isConflict = (error: unknown) => error instanceof TidingsError && error.code === 'CONFLICT'

describeEachEngine('a claim on an idempotency key', engine => {
  const clock = testClock()
  const sealer = createSealer([randomBytes(32)])
  const accessTokenId = randomUUID()
  let given: TestDatabase
  const claims: Claim[] = []
  before(async () => {
    given = await migratedDatabase(engine)
  })
  after(async () => {
    for (const claim of claims) await claim.release()
    await given.drop()
  })

  const tools = () => ({ sql: given.database.knex, sealer, clock })
  const request = (key: string) => ({ accessTokenId, key, body, giveUpAt: performance.now() + 10_000 })
  const claim = async (key: string): Promise<Claim> => {
    const found = await claimKey(tools(), request(key))
    assert.ok(found instanceof Claim)
    claims.push(found)
    return found
  }
  const note = (by: Claim, outcome: unknown) => given.database.transaction(trx => by.note(trx, outcome))

  it('is taken over from a process that died, with what was done', async () => {
    const key = randomUUID()
    const dead = await claim(key)
    assert.equal(dead.enter('one'), undefined)
    await note(dead, { id: 'a' })
    clock.advance(LEASE_MS - 1)
    await assert.rejects(claim(key), isConflict)
    clock.advance(1)
    const next = await claim(key)
    assert.deepEqual(next.enter('one'), { id: 'a' })
    assert.equal(next.enter('two'), undefined)
  })

  it('lets nothing be done in the name of one that was taken over', async () => {
    const key = randomUUID()
    const stalled = await claim(key)
    stalled.enter('one')
    clock.advance(LEASE_MS)
    const next = await claim(key)
    const late = given.database.transaction(async trx => {
      await trx('organisations').insert({ id: randomUUID(), name: 'Twice', created_at: 0, updated_at: 0 })
      await stalled.note(trx, { id: 'late' })
    })
    await assert.rejects(late, isConflict)
    assert.deepEqual(await given.database.knex('organisations').where({ name: 'Twice' }), [])
    await stalled.finish({ ...answer, body: 'late' })
    await next.finish(answer)
    assert.deepEqual(await claimKey(tools(), request(key)), answer)
  })

  it('lets one of many take over', async () => {
    const key = randomUUID()
    await claim(key)
    clock.advance(LEASE_MS)
    const all = await Promise.allSettled(Array.from({ length: 8 }, () => claim(key)))
    assert.equal(all.filter(({ status }) => status === 'fulfilled').length, 1)
    for (const one of all) assert.ok(one.status === 'fulfilled' || isConflict(one.reason))
  })

  it('refuses a change again whose commit seemed to fail and was done', async () => {
    const unsure = await claim(randomUUID())
    unsure.enter('one')
    await note(unsure, { id: 'a' })
    await assert.rejects(note(unsure, { id: 'b' }), isConflict)
  })

  it('finds out what a commit that seemed to fail has come to', async () => {
    const unsure = await claim(randomUUID())
    unsure.enter('one')
    assert.equal(await unsure.lookAgain(given.database), undefined)
    await note(unsure, { id: 'a' })
    assert.deepEqual(await unsure.lookAgain(given.database), { id: 'a' })
    unsure.enter('two')
    await note(unsure, { id: 'b' })
    assert.deepEqual(await unsure.lookAgain(given.database), { id: 'b' })
  })

  it('finds nothing done by a commit that seemed to fail if the key was taken over since', async () => {
    const key = randomUUID()
    const stalled = await claim(key)
    stalled.enter('one')
    clock.advance(LEASE_MS)
    await claim(key)
    assert.equal(await stalled.lookAgain(given.database), undefined)
  })

  it('is had at once when it was released', async () => {
    const key = randomUUID()
    const first = await claim(key)
    first.enter('one')
    await note(first, { id: 'a' })
    first.noted({ id: 'a' })
    first.enter('two')
    await note(first, { id: 'b' })
    await first.release()
    const next = await claim(key)
    assert.deepEqual([next.enter('one'), next.enter('two')], [{ id: 'a' }, { id: 'b' }])
  })

  it('is kept for as long as its request is worked on', async t => {
    t.mock.timers.enable({ apis: ['setInterval'] })
    const key = randomUUID()
    await claim(key)
    clock.advance(LEASE_MS - 1)
    t.mock.timers.tick(LEASE_MS - 1)
    const leasedUntil = () => given.database.knex('idempotency_keys').max('leased_until as at').first()
    await eventually('the lease to be renewed', leasedUntil, row => row?.at > clock.now() + 1)
    clock.advance(1)
    await assert.rejects(claim(key), isConflict)
  })

  it('is deleted when its time is over', async () => {
    await given.database.knex('idempotency_keys').delete()
    await claim('old')
    clock.advance(1)
    await claim('young')
    clock.advance(KEPT_MS - 1)
    assert.equal(await deleteExpiredKeys(given.database.knex, clock.now(), 10), 1)
    assert.equal(await deleteExpiredKeys(given.database.knex, clock.now(), 10), 0)
    assert.equal((await given.database.knex('idempotency_keys')).length, 1)
  })
})
