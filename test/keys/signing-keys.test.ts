import assert from 'node:assert/strict'
import { createHash, createPublicKey, type KeyObject, randomBytes, randomUUID, sign, verify } from 'node:crypto'
import { after, afterEach, before, beforeEach, it } from 'node:test'
import { atBeat, BEAT_MS } from '../../server/beat.ts'
import { connect } from '../../server/database/connect.ts'
import { nextDue } from '../../server/delivery/queue.ts'
import { createSealer } from '../../server/keys/seal.ts'
import {
  deleteRetiredKeys,
  type Keyring,
  openKeyring,
  REVOKED_WAIT_MS,
  revokeKey,
  signsAgainAt,
} from '../../server/keys/signing-keys.ts'
import { type TestClock, testClock } from '../support/clock.ts'
import { describeEachEngine, migratedDatabase, NOT_ON_SQLITE, type TestDatabase } from '../support/databases.ts'
import { eventually } from '../support/eventually.ts'

const MINUTE_MS = 60_000
/** What a delivery token is valid for, and what a receiver may keep the JWKS for. */
const TOKEN_MS = 5 * MINUTE_MS
const CACHE_MS = 5 * MINUTE_MS

const [oldMaster, newMaster] = [randomBytes(32), randomBytes(32)]
const sealer = createSealer([oldMaster])

describeEachEngine('signing keys', engine => {
  let fresh: TestDatabase
  let clock: TestClock
  const opened: Keyring[] = []
  before(async () => {
    fresh = await migratedDatabase(engine)
  })
  after(() => fresh.drop())
  beforeEach(async () => {
    await fresh.database.knex('signing_keys').delete()
    clock = testClock()
  })
  afterEach(() => {
    for (const keyring of opened.splice(0)) keyring.stop()
  })

  const open = async (given = { database: fresh.database, sealer }): Promise<Keyring> => {
    const keyring = await openKeyring(given.database, given.sealer, clock)
    opened.push(keyring)
    return keyring
  }
  const kids = (keyring: Keyring): string[] => keyring.jwks().keys.map(({ kid }) => kid)

  /** Whether what this key signs is verified by the public key that the JWKS has under its id. */
  const isVerified = ({ kid, key }: { kid: string; key: KeyObject }, by: Keyring): boolean => {
    const jwk = by.jwks().keys.find(it => it.kid === kid)
    if (!jwk) return false
    const message = Buffer.from('a token')
    return verify(null, message, createPublicKey({ key: jwk, format: 'jwk' }), sign(null, message, key))
  }

  it('has an id that a command line does not take for an option', async () => {
    for (let n = 0; n < 200; n++) {
      await fresh.database.knex('signing_keys').delete()
      const [kid] = kids(await open())
      assert.doesNotMatch(kid!, /^-/)
      opened.pop()!.stop()
    }
  })

  it('has one from the first start, which signs at once', async () => {
    const keyring = await open()
    assert.deepEqual(kids(keyring), [keyring.current().kid])
    assert.ok(isVerified(keyring.current(), keyring))
  })

  it('shows of each exactly what a receiver needs, its id being the RFC 7638 thumbprint', async () => {
    const { keys } = (await open()).jwks()
    const [{ x, kid, ...rest }] = keys as [(typeof keys)[0]]
    assert.deepEqual(rest, { kty: 'OKP', crv: 'Ed25519', use: 'sig', alg: 'EdDSA' })
    // RFC 7638 section 3.3 with the members of RFC 8037 section 2: required ones only, in order, without white space.
    const members = `{"crv":"Ed25519","kty":"OKP","x":"${x}"}`
    assert.equal(kid, createHash('sha256').update(members).digest('base64url'))
  })

  it('does not keep a private key in the clear', async () => {
    const keyring = await open()
    const stored = JSON.stringify(await fresh.database.knex('signing_keys'))
    const { d } = keyring.current().key.export({ format: 'jwk' })
    assert.ok(!stored.includes(d!))
    assert.doesNotMatch(stored, /PRIVATE KEY|"d"/)
  })

  it('is the same one after a restart, and in every process', async () => {
    const [one, two] = await Promise.all([open(), open()])
    const three = await open()
    assert.equal(two.current().kid, one.current().kid)
    assert.equal(three.current().kid, one.current().kid)
    assert.equal((await fresh.database.knex('signing_keys')).length, 1)
  })

  it('is made although the transaction of another process conflicts with it', {
    skip: engine === 'sqlite' && NOT_ON_SQLITE,
  }, async () => {
    const { knex } = fresh.database
    const other = await knex.transaction()
    try {
      // The database rolls back the one that has changed less.
      const ids = Array.from({ length: 20 }, () => randomUUID())
      await other('users').insert(ids.map(id => ({ id, name: 'Ada', created_at: 1, updated_at: 1 })))
      const times = { created_at: 1, active_from: 1 }
      await other('signing_keys').insert({
        kid: 'other',
        generation: 1,
        public_jwk: '{}',
        private_key_sealed: '',
        ...times,
      })
      const opening = open()
      // Other tests have databases of the same server.
      const here = knex('information_schema.processlist').select('id').whereRaw('db = DATABASE()')
      const waiting = knex('information_schema.innodb_trx').where('trx_state', 'LOCK WAIT')
      const look = async () => (await waiting.clone().whereIn('trx_mysql_thread_id', here.clone())).length
      // InnoDB renews what it shows of transactions only if nobody has read it for 100 ms.
      await eventually('the key to wait for the other', look, count => count > 0, { everyMs: 250 })
      await other.raw('SELECT public_jwk FROM signing_keys FOR UPDATE')
      await other.rollback()
      assert.equal(kids(await opening).length, 1)
    } finally {
      await other.rollback()
    }
  })

  it('publishes the next key 10 minutes before it signs', async () => {
    const keyring = await open()
    const first = keyring.current()
    const next = await keyring.rotate()
    assert.equal(next.activeFrom, clock.now() + 10 * MINUTE_MS)
    assert.deepEqual(kids(keyring), [first.kid, next.kid])

    clock.advance(10 * MINUTE_MS - 1)
    assert.equal(keyring.current().kid, first.kid)
    clock.advance(1)
    assert.equal(keyring.current().kid, next.kid)
    assert.ok(isVerified(keyring.current(), keyring))
  })

  it('keeps the last key published until its last token has expired and caches have turned over', async () => {
    const keyring = await open()
    const first = keyring.current()
    const next = await keyring.rotate()
    clock.advance(10 * MINUTE_MS - 1)
    assert.equal(keyring.current().kid, first.kid, 'signs its last token')
    clock.advance(TOKEN_MS + CACHE_MS)
    assert.ok(isVerified(first, keyring))
    clock.advance(TOKEN_MS + CACHE_MS)
    assert.deepEqual(kids(keyring), [next.kid])
  })

  it('answers a rotation with the next key for as long as that does not sign yet', async () => {
    const keyring = await open()
    const first = keyring.current()
    const second = await keyring.rotate()
    clock.advance(MINUTE_MS)
    assert.equal((await keyring.rotate()).kid, second.kid)
    clock.set(second.activeFrom)
    assert.equal(keyring.current().kid, second.kid)
    const third = await keyring.rotate()
    assert.deepEqual(kids(keyring), [first.kid, second.kid, third.kid])
    assert.ok(isVerified(first, keyring))
  })

  it('makes one next key when two processes rotate in the same moment', async () => {
    const other = await connect(fresh.url)
    try {
      const [one, two] = [await open(), await open({ database: other, sealer })]
      const [a, b] = await Promise.all([one.rotate(), two.rotate()])
      assert.equal(a.kid, b.kid)
      assert.deepEqual(kids(one), kids(two))
      assert.equal(kids(one).length, 2)
    } finally {
      await other.close()
    }
  })

  it('is in the key set of the process that answers with it, which another process has made it for', async () => {
    const [one, two] = [await open(), await open()]
    const { kid } = await one.rotate()
    assert.equal((await two.rotate()).kid, kid)
    assert.ok(kids(two).includes(kid))
  })

  if (engine !== 'sqlite') {
    it('stays known to the process that made it, though a look that began before is answered later', async () => {
      const keyring = await open()
      const { client } = fresh.database.knex
      const { query } = client
      const answered = Promise.withResolvers<void>()
      client.query = async (connection: unknown, asked: { sql: string }) => {
        client.query = query
        const answer = await query.call(client, connection, asked)
        await answered.promise
        return answer
      }
      const looking = keyring.refresh()
      const { kid } = await keyring.rotate()
      answered.resolve()
      await looking
      assert.ok(kids(keyring).includes(kid))
    })
  }

  it('comes to the notice of the other processes within two seconds', async () => {
    const [one, two] = [await open(), await open()]
    const next = await one.rotate()
    assert.ok(!kids(two).includes(next.kid))
    await eventually(
      'the other process to have the key',
      () => kids(two),
      all => all.includes(next.kid),
    )
    assert.deepEqual(kids(two), kids(one))
  })

  it('comes to the notice of a process that looks for what is due', async () => {
    const { database } = fresh
    const [one, two] = [await open(), await open()]
    // The next look of their own is a second away.
    await new Promise<void>(resolve => atBeat(BEAT_MS, () => resolve()))
    const next = await one.rotate()
    two.heard((await nextDue(database, clock.now())).keys)
    await eventually(
      'the other process to have the key',
      () => kids(two),
      all => all.includes(next.kid),
    )
    await revokeKey(database, sealer, next.kid, clock.now())
    two.heard((await nextDue(database, clock.now())).keys)
    await eventually(
      'the other process to have it no more',
      () => kids(two),
      all => !all.includes(next.kid),
    )
  })

  it('is deleted when no receiver needs it, and the one that signs is not', async () => {
    const { database } = fresh
    const keyring = await open()
    const first = keyring.current()
    const next = await keyring.rotate()
    clock.advance(10 * MINUTE_MS)
    await deleteRetiredKeys(database.knex, clock.now())
    assert.equal((await database.knex('signing_keys')).length, 2, 'its tokens may be on their way')
    clock.advance(TOKEN_MS + CACHE_MS + MINUTE_MS)
    await deleteRetiredKeys(database.knex, clock.now())
    assert.deepEqual(await database.knex('signing_keys').pluck('kid'), [next.kid])
    assert.deepEqual(kids(keyring), [next.kid])
    assert.notEqual(keyring.current().kid, first.kid)
  })

  it('that is revoked is published no more and signs nothing; the next one signs when caches are over', async () => {
    const { database } = fresh
    const keyring = await open()
    const leaked = keyring.current()
    const revoked = await revokeKey(database, sealer, leaked.kid, clock.now())
    await keyring.refresh()
    assert.equal(revoked?.signsFrom, clock.now() + REVOKED_WAIT_MS)
    assert.equal(await signsAgainAt(fresh.database.knex, clock.now()), revoked?.signsFrom)
    assert.ok(REVOKED_WAIT_MS > CACHE_MS)
    assert.equal(keyring.signsFrom(), revoked.signsFrom)
    assert.throws(() => keyring.current())
    assert.equal(kids(keyring).length, 1)
    assert.ok(!kids(keyring).includes(leaked.kid))
    clock.set(revoked.signsFrom)
    assert.equal(keyring.signsFrom(), 0)
    assert.ok(isVerified(keyring.current(), keyring))
    assert.doesNotMatch(JSON.stringify(await database.knex('signing_keys').where({ kid: leaked.kid })), /"v1\./)
    assert.deepEqual(await revokeKey(database, sealer, leaked.kid, clock.now()), { signsFrom: clock.now() })
    assert.equal(await revokeKey(database, sealer, 'no such key', clock.now()), undefined)
  })

  it('that is revoked gives way at once to the next, where that has long been published', async () => {
    const { database } = fresh
    const keyring = await open()
    const leaked = keyring.current()
    const next = await keyring.rotate()
    clock.advance(6 * MINUTE_MS)
    await revokeKey(database, sealer, leaked.kid, clock.now())
    await keyring.refresh()
    assert.equal(keyring.signsFrom(), 0)
    assert.equal(keyring.current().kid, next.kid)
  })

  it('that is revoked before it signs never does, and the one that signs goes on', async () => {
    const { database } = fresh
    const keyring = await open()
    const first = keyring.current()
    const leaked = await keyring.rotate()
    await revokeKey(database, sealer, leaked.kid, clock.now())
    await keyring.refresh()
    assert.deepEqual(kids(keyring), [first.kid])
    clock.advance(60 * MINUTE_MS)
    assert.equal(keyring.current().kid, first.kid)
    assert.ok(isVerified(keyring.current(), keyring))
    const another = await keyring.rotate()
    assert.notEqual(another.kid, leaked.kid)
    clock.advance(60 * MINUTE_MS)
    assert.equal(keyring.current().kid, another.kid)
  })

  it('that a process cannot open is published by it all the same; it signs nothing then, and says why', async () => {
    const { database } = fresh
    const keyring = await openKeyring(database, sealer, clock)
    opened.push(keyring)
    const other = await open({ database, sealer: createSealer([newMaster, oldMaster]) })
    const next = await other.rotate()
    await eventually(
      'the key',
      () => kids(keyring),
      found => found.includes(next.kid),
    )
    assert.match(keyring.fault() ?? '', new RegExp(`${next.kid} .* TIDINGS_MASTER_KEY`))
    assert.equal(keyring.signsFrom(), 0, 'the one before signs yet')
    clock.set(next.activeFrom)
    assert.equal(keyring.signsFrom(), Number.POSITIVE_INFINITY)
    assert.throws(() => keyring.current(), /cannot sign/)
  })

  it('survives a change of the master key while the old one is still named', async () => {
    const { database } = fresh
    const { kid } = (await open()).current()
    const both = await open({ database, sealer: createSealer([newMaster, oldMaster]) })
    assert.equal(both.current().kid, kid)
    await assert.rejects(open({ database, sealer: createSealer([newMaster]) }), /TIDINGS_MASTER_KEY/)
  })
})
