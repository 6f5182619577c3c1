import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { after, afterEach, before, it } from 'node:test'
import { type Config, readConfig } from '../../server/config.ts'
import { connect, rows } from '../../server/database/connect.ts'
import { findByApiKey } from '../../server/domain/access-tokens.ts'
import { claimKey } from '../../server/domain/idempotency.ts'
import { joinProcesses, KeyOrderError, type Membership, namesOf } from '../../server/keys/master-keys.ts'
import { reseal } from '../../server/keys/reseal.ts'
import { createSealer } from '../../server/keys/seal.ts'
import { openKeyring } from '../../server/keys/signing-keys.ts'
import { createLog } from '../../server/log.ts'
import { createToken } from '../../server/maintenance.ts'
import { realClock } from '../support/clock.ts'
import { describeEachEngine, migratedDatabase, type TestDatabase } from '../support/databases.ts'

const log = createLog('silent')

describeEachEngine('replacing the master key', engine => {
  let fresh: TestDatabase
  const [old, next] = [randomBytes(32), randomBytes(32)]
  const members: Membership[] = []
  before(async () => {
    fresh = await migratedDatabase(engine)
  })
  after(() => fresh.drop())
  afterEach(async () => {
    for (const member of members.splice(0)) await member.leave()
  })

  const join = async (...masterKeys: Buffer[]): Promise<Membership> => {
    const member = await joinProcesses(fresh.database, { masterKeys, roles: ['api'], log })
    members.push(member)
    return member
  }
  const refused = (mayPass: boolean, words: RegExp) => (error: unknown) => {
    assert.ok(error instanceof KeyOrderError)
    assert.equal(error.mayPass, mayPass)
    assert.match(error.message, words)
    assert.ok(!error.message.includes(old.toString('base64').slice(0, 8)))
    return true
  }

  it('lets nobody seal with a key that a running process cannot open', async () => {
    const first = await join(old)
    await assert.rejects(join(next, old), refused(true, /would seal with .* process \d+ on .* cannot open/))
    const config = { masterKeys: [next, old] } as Config
    await assert.rejects(createToken(fresh.database, config, { name: 'x', permissions: ['read'] }), KeyOrderError)
    await join(old, next)
    await first.leave()
    await join(next, old)
  })

  it('lets no process in that cannot open what is sealed', async () => {
    await join(old, next)
    await assert.rejects(join(next), refused(false, new RegExp(`sealed with master key ${namesOf([old])[0]}`)))
  })

  it('goes from the old key to the new one while processes run, and all that was sealed still opens', async () => {
    const { database } = fresh
    await database.knex('master_keys').delete()
    const config = (...masterKeys: Buffer[]) => ({ masterKeys }) as Config
    const token = await createToken(database, config(old), { name: 'ci', permissions: ['admin'] })
    const place = { accessTokenId: token.id, key: 'k', body: Buffer.from('{}'), giveUpAt: performance.now() + 30_000 }
    const answered = { status: 200, contentType: 'application/json', body: 'x'.repeat(100_000) }
    const claim = await claimKey({ sql: database.knex, sealer: createSealer([old]), clock: realClock }, place)
    assert.ok('finish' in claim)
    await claim.finish(answered)
    const keyring = await openKeyring(database, createSealer([old]), realClock)
    const { kid } = keyring.current()
    keyring.stop()

    const first = await join(old)
    await join(old, next)
    await assert.rejects(reseal(database, [next, old]), refused(true, /cannot open/))
    await first.leave()
    await members.pop()!.leave()
    const earlier = await join(old, next)
    await join(next, old)
    await assert.rejects(reseal(database, [next, old]), refused(true, /would still seal with a master key other than/))
    await earlier.leave()
    assert.deepEqual(await reseal(database, [next, old]), { resealed: 3, key: namesOf([next])[0] })
    assert.equal((await reseal(database, [next, old])).resealed, 0, 'once more does nothing')

    const only = createSealer([next])
    const found = await findByApiKey(database.knex, only, token.apiKey)
    assert.equal(found?.apiSecret, token.apiSecret)
    assert.deepEqual(await claimKey({ sql: database.knex, sealer: only, clock: realClock }, place), answered)
    const reopened = await openKeyring(database, only, realClock)
    assert.equal(reopened.current().kid, kid)
    reopened.stop()
    await join(next)
    await assert.rejects(join(old, next), refused(true, /would seal with/), 'the old one does not come back')
  })

  it('goes on after it was killed in the middle of sealing again', async () => {
    const { database } = fresh
    const [third] = [randomBytes(32)]
    for (let n = 0; n < 3; n += 1) {
      await createToken(database, { masterKeys: [next] } as Config, { name: `t${n}`, permissions: ['read'] })
    }
    const dying = await connect(fresh.url)
    let updates = 0
    dying.knex.on('query', ({ sql }: { sql: string }) => {
      if (/^UPDATE access_tokens/.test(sql) && ++updates === 2) throw new Error('killed')
    })
    await assert.rejects(reseal(dying, [third, next]), /killed/)
    await dying.close()
    await assert.rejects(join(third), KeyOrderError, 'the step is not done')
    await reseal(database, [third, next])
    await join(third)
  })

  it('a process whose row was lost comes in again, where it still fits', async t => {
    t.mock.timers.enable({ apis: ['setInterval'] })
    const { database } = fresh
    const config = readConfig({
      TIDINGS_DATABASE_URL: fresh.url,
      TIDINGS_MASTER_KEY: randomBytes(32).toString('base64'),
      TIDINGS_HOME: '/nonexistent',
    })
    await database.knex('master_keys').delete()
    const member = await join(...config.masterKeys)
    await database.knex('processes').delete()
    // The database was put back to a time when another key sealed.
    await database.knex('master_keys').insert({ name: 'anotherk' })
    t.mock.timers.tick(10_000)
    const { eventually } = await import('../support/eventually.ts')
    await eventually(
      'the process to say that it does not fit',
      () => member.fault() ?? '',
      fault => /anotherk/.test(fault),
    )
    await database.knex('master_keys').delete()
    t.mock.timers.tick(10_000)
    await eventually(
      'it to fit again',
      () => member.fault() ?? '',
      fault => fault === '',
    )
    assert.equal((await rows(database.knex, 'SELECT id FROM processes')).length, 1)
  })
})
