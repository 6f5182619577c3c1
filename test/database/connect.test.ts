import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, before, it } from 'node:test'
import { setTimeout as wait } from 'node:timers/promises'
import { inspect } from 'node:util'
import type { Knex } from 'knex'
import { databaseClock } from '../../server/clock.ts'
import {
  connect,
  type Database,
  inOneTrip,
  insertMany,
  isDuplicate,
  isMissingTable,
  isOutage,
  marks,
  rows,
  run,
} from '../../server/database/connect.ts'
import { REQUEST_MS } from '../../server/database/patience.ts'
import type { Transaction } from '../../server/database/transaction.ts'
import { startProxy as startStatementProxy } from '../chaos/proxy.ts'
import { describeEachEngine, migratedDatabase, NOT_ON_SQLITE, type TestDatabase } from '../support/databases.ts'
import { startProxy } from './proxy.ts'

/** Longer than the database of a busy machine takes to answer. */
const SILENCE_MS = 1_000

describeEachEngine('a database', engine => {
  let fresh: TestDatabase
  let database: Database
  before(async () => {
    fresh = await migratedDatabase(engine)
    database = fresh.database
  })
  after(() => fresh.drop())

  const addUsers = async (...names: string[]): Promise<string[]> => {
    const users = names.map(name => ({ id: randomUUID(), name, created_at: 0, updated_at: 0 }))
    await database.knex('users').insert(users)
    return users.map(({ id }) => id)
  }
  const nameOf = async (id: string): Promise<string> => (await database.knex('users').where({ id }).first()).name

  it('keeps nothing of a transaction that fails', async () => {
    const [id] = await addUsers('before')
    const failing = database.transaction(async trx => {
      await trx('users').where({ id }).update({ name: 'after' })
      throw new Error('no')
    })
    await assert.rejects(failing, /^Error: no$/)
    assert.equal(await nameOf(id!), 'before')
  })

  it('keeps nothing of a transaction that fails, also where another one within it has ended', async () => {
    const user = { id: randomUUID(), name: 'Within', created_at: 0, updated_at: 0 }
    const failing = database.transaction(async trx => {
      await trx('users').insert(user)
      await trx.transaction(async within => {
        await within('users').where({ id: user.id }).update({ name: 'Further within' })
      })
      throw new Error('not this one')
    })
    await assert.rejects(failing, { message: 'not this one' })
    assert.equal(await database.knex('users').where({ id: user.id }).first(), undefined)
  })

  it('keeps JSON as it is given, whatever its texts contain', async () => {
    const ascii = Array.from({ length: 128 }, (_, code) => String.fromCharCode(code)).join('')
    const value = { ascii, quoted: "\\'\\\\'", others: '\u2028 ä 漢 😀 ?? :name', half: '\ud83d', "'; --": [null, 1.5] }
    const bound = database.dialect.boundJson(value) as Knex.RawBinding
    const [row] = await rows<{ kept: string }>(database.knex, 'SELECT ? AS kept', [bound])
    assert.deepEqual(JSON.parse(row!.kept), value)
  })

  if (engine !== 'sqlite') {
    it('is out of reach for those who wait for it when it is closed, and for those who come after', async () => {
      const closing = await connect(fresh.url, { poolSize: 1 })
      const { promise: held, resolve: letGo } = Promise.withResolvers<void>()
      const holding = closing.transaction(() => held)
      await wait(50)
      const waiting = rows(closing.knex, 'SELECT 1').catch(error => error)
      const closed = closing.close()
      letGo()
      await Promise.all([holding, closed])
      for (const fault of [await waiting, await rows(closing.knex, 'SELECT 1').catch(error => error)]) {
        assert.ok(isOutage(fault), inspect(fault))
      }
    })
  }

  if (engine === 'sqlite') {
    it('reads the columns that another process has added or dropped since it asked the same', async () => {
      const other = await connect(fresh.url)
      const ask = () => rows<object>(database.knex, 'SELECT * FROM widths')
      try {
        await other.knex.raw('CREATE TABLE widths (a, b)')
        await other.knex.raw('INSERT INTO widths VALUES (1, 2)')
        assert.deepEqual(await ask(), [{ a: 1, b: 2 }])
        await other.knex.raw('ALTER TABLE widths ADD COLUMN c DEFAULT 3')
        assert.deepEqual(await ask(), [{ a: 1, b: 2, c: 3 }])
        await other.knex.raw('ALTER TABLE widths DROP COLUMN a')
        assert.deepEqual(await ask(), [{ b: 2, c: 3 }])
      } finally {
        await other.knex.raw('DROP TABLE widths')
        await other.close()
      }
    })

    it('keeps its connection where the engine has rolled a transaction back by itself, as on a full disk', async () => {
      const { client } = database.knex
      const connected = await client.acquireConnection()
      client.releaseConnection(connected)
      const failing = database.transaction(async trx => {
        await trx.raw('ROLLBACK')
        throw new Error('the disk is full')
      })
      await assert.rejects(failing, /the disk is full/)
      const again = await client.acquireConnection()
      client.releaseConnection(again)
      assert.equal(again, connected)
    })
  }

  it('takes no statement into a transaction that is over', async () => {
    const { promise: kept, resolve: keep } = Promise.withResolvers<Transaction>()
    await database.transaction(async trx => keep(trx))
    await assert.rejects(rows(await kept, 'SELECT 1 AS n'), /The transaction is over/)
  })

  it('keeps no process running once it is closed, though a connection was just given out', async () => {
    const closing = await connect(fresh.url)
    const { pool } = closing.knex.client
    await rows(closing.knex, 'SELECT 1 AS n')
    const asked = rows(closing.knex, 'SELECT 2 AS n')
    await closing.close()
    await asked.catch(() => {})
    assert.equal(pool.interval, null)
  })

  it('executes the statements of one trip in their order, and keeps all of them or none', async t => {
    const packing = await connect(fresh.url, { poolSize: 1, isPacking: true })
    t.after(() => packing.close())
    const insert = (trx: Transaction, name: string) =>
      run(trx, 'INSERT INTO users (id, name, created_at, updated_at) VALUES (?, ?, 0, 0)', [randomUUID(), name])
    const count = (trx: Transaction) => rows<{ n: number }>(trx, "SELECT COUNT(*) AS n FROM users WHERE name = 'x'")
    const { transaction } = packing
    const answers = await transaction(trx => inOneTrip([count(trx), insert(trx, 'x'), count(trx)]))
    assert.deepEqual(answers, [[{ n: 0 }], 1, [{ n: 1 }]])
    await transaction(async () => {})

    const half = (trx: Transaction) => inOneTrip([insert(trx, 'x'), run(trx, 'INSERT INTO nowhere VALUES (1)')])
    await assert.rejects(transaction(half), isMissingTable)
    const failing = (trx: Transaction) => {
      const inserted = insert(trx, 'x')
      inserted.catch(() => {})
      throw new Error('not sent yet')
    }
    await assert.rejects(
      transaction(async trx => failing(trx)),
      /not sent yet/,
    )
    assert.deepEqual(await transaction(count), [{ n: 1 }])
  })

  if (engine !== 'sqlite') {
    it('is given BEGIN and the statements that are asked at once in one packet, where that is wanted', async t => {
      const proxy = await startStatementProxy(fresh.url)
      t.after(() => proxy.close())
      for (const [isPacking, packet] of [
        [true, 'BEGIN;\nSELECT 1 AS n;\nSELECT 2 AS n'],
        [false, 'SELECT 2 AS n'],
      ] as const) {
        const connected = await connect(proxy.url, { isPacking })
        const hold = proxy.hold(/SELECT 2/)
        const both = connected.transaction(trx => inOneTrip([rows(trx, 'SELECT 1 AS n'), rows(trx, 'SELECT 2 AS n')]))
        assert.equal((await hold.caught).text, packet)
        hold.end()
        assert.deepEqual(await both, [[{ n: 1 }], [{ n: 2 }]])
        await connected.close()
      }
    })
  }

  it('sorts text by all of it, however long', async () => {
    const text = '\u{1f600}'.repeat(1_023)
    const one = (value: string) => `SELECT ${marks([value])} AS value`
    const found = await rows<{ value: string }>(
      database.knex,
      `SELECT value FROM (${['c', 'a', 'b'].map(one).join(' UNION ALL ')}) texts ORDER BY value`,
      ['c', 'a', 'b'].map(end => text + end),
    )
    assert.deepEqual(
      found.map(({ value }) => value.at(-1)),
      ['a', 'b', 'c'],
    )
  })

  it('inserts more rows than one statement takes, and none', async () => {
    const name = randomUUID()
    const users = Array.from({ length: 1_234 }, () => ({ id: randomUUID(), name, created_at: 0, updated_at: 0 }))
    await insertMany(database.knex, 'users', users)
    await insertMany(database.knex, 'users', [])
    const [found] = await database.knex('users').where({ name }).count({ count: '*' })
    assert.equal(Number(found!.count), 1_234)
  })

  it('runs a transaction once when it fails by itself', async () => {
    let runs = 0
    const failing = database.transaction(async () => {
      runs += 1
      throw new Error('no')
    })
    await assert.rejects(failing)
    assert.equal(runs, 1)
  })

  it('lets two transactions through that stand in each other’s way', async () => {
    const [a, b] = (await addUsers('a', 'b')) as [string, string]
    const second = await connect(fresh.url)
    let runs = 0
    let arrived = 0
    let bothAreThere = () => {}
    const both = new Promise<void>(resolve => {
      bothAreThere = resolve
    })
    const rename = (by: Database, ids: string[], suffix: string) =>
      by.transaction(async trx => {
        runs += 1
        for (const [index, id] of ids.entries()) {
          await run(trx, 'UPDATE users SET name = ? WHERE id = ?', [`${id.slice(0, 8)}${suffix}`, id])
          if (index > 0) continue
          // Each holds its first row before it wants the other's. SQLite lets only one in, which then need not wait.
          if (++arrived === 2 || database.dialect.isEmbedded) bothAreThere()
          await both
        }
        return suffix
      })
    try {
      const done = await Promise.all([rename(database, [a, b], '-1'), rename(second, [b, a], '-2')])
      assert.deepEqual(done, ['-1', '-2'])
      assert.equal(runs, database.dialect.isEmbedded ? 2 : 3, 'the victim of the deadlock ran again')
      assert.equal((await nameOf(a)).slice(8), (await nameOf(b)).slice(8), 'neither was mixed with the other')
    } finally {
      await second.close()
    }
  })

  it('makes a write wait for another transaction without holding up the process', async () => {
    const [id] = await addUsers('first')
    const second = await connect(fresh.url)
    try {
      const { promise: isLocked, resolve: locked } = Promise.withResolvers<void>()
      const holding = database.transaction(async trx => {
        await trx('users').where({ id }).update({ name: 'second' })
        locked()
        await wait(50)
      })
      await isLocked
      const startedMs = performance.now()
      await second.knex('users').where({ id }).update({ name: 'third' })
      await holding
      assert.equal(await nameOf(id!), 'third')
      assert.ok(performance.now() - startedMs < 0.8 * REQUEST_MS, 'the transaction could go on meanwhile')
    } finally {
      await second.close()
    }
  })

  it('lets the process do other work between transactions that follow each other', async () => {
    let turns = 0
    let isOver = false
    const turn = (): void => {
      turns += 1
      if (!isOver) setImmediate(turn)
    }
    setImmediate(turn)
    const busy = (trx: Transaction) => {
      for (const end = performance.now() + 1; performance.now() < end; );
      return run(trx, 'UPDATE users SET updated_at = 1 WHERE id = ?', [randomUUID()])
    }
    await Promise.all(Array.from({ length: 100 }, () => database.transaction(busy)))
    isOver = true
    assert.ok(turns >= 5, `${turns} turns of the event loop in 100 ms`)
  })

  it('tells a duplicate and a missing table from other faults', async () => {
    const [id] = await addUsers('only')
    const insert = database.knex('users').insert({ id, name: 'again', created_at: 0, updated_at: 0 })
    await assert.rejects(insert, error => isDuplicate(error) && !isMissingTable(error))
    await assert.rejects(
      rows(database.knex, 'SELECT * FROM nothing_of_this_name'),
      error => isMissingTable(error) && !isDuplicate(error),
    )
  })

  it('compares names byte by byte, trailing spaces included', async () => {
    const names = ['Straße', 'straße', 'Strasse', 'Straße ', 'Strasße', 'Stra\u0073\u030ce']
    await addUsers(...names)
    for (const name of names) {
      const found = await rows<{ name: string }>(database.knex, 'SELECT name FROM users WHERE name = ?', [name])
      assert.deepEqual(
        found.map(row => row.name),
        [name],
      )
    }
  })

  it('gives back text of any script, and numbers as numbers', async () => {
    const name = '水 👩🏽‍🚒 ’"\\%_\u0000'
    const [id] = await addUsers(name)
    assert.equal(await nameOf(id!), name)
    const now = 1_795_221_601_123
    await database.knex('users').where({ id }).update({ created_at: now })
    const [row] = await rows<{ created_at: unknown }>(database.knex, 'SELECT created_at FROM users WHERE id = ?', [id!])
    assert.equal(row!.created_at, now)
  })

  it('counts the rows that a statement matched', async () => {
    const [id] = await addUsers('same')
    const change = (name: string, of: string) =>
      run(database.knex, 'UPDATE users SET name = ? WHERE id = ?', [name, of])
    assert.equal(await change('other', id!), 1)
    assert.equal(await change('other', id!), 1, 'one that stays as it was counts too')
    assert.equal(await change('other', randomUUID()), 0)
  })

  it('turns a duplicate into an update where it is told to', async () => {
    const id = randomUUID()
    const insert = (name: string) =>
      run(
        database.knex,
        'INSERT INTO users (id, name, created_at, updated_at) ' +
          `VALUES (?, ?, 0, 0)${database.dialect.onDuplicateUpdate(['id'], ['name'])}`,
        [id, name],
      )
    await insert('one')
    await insert('two')
    assert.equal(await nameOf(id), 'two')
  })

  it('tells the time', async () => {
    const beganAt = performance.now()
    const clock = await databaseClock(database)
    clock.stop()
    const offMs = clock.now() - Date.now()
    // A database may tell whole milliseconds.
    assert.ok(Math.abs(offMs) <= performance.now() - beganAt + 1, `${offMs} ms off`)
  })

  it('that has gone without a word fails what waits for it, and is used again when it is back', async t => {
    if (engine === 'sqlite') return t.skip(NOT_ON_SQLITE)
    const proxy = await startProxy(fresh.url)
    const distant = await connect(proxy.url, { silenceMs: SILENCE_MS })
    try {
      proxy.break('does not answer')
      await assert.rejects(rows(distant.knex, 'SELECT 1'), /silent for 1 s/)
      proxy.mend()
      assert.equal((await rows(distant.knex, 'SELECT 1')).length, 1)
    } finally {
      proxy.close()
      await distant.close()
    }
  })

  it('that says nothing more to a connection that is being closed ends no process', async t => {
    if (engine === 'sqlite') return t.skip(NOT_ON_SQLITE)
    const proxy = await startProxy(fresh.url)
    const distant = await connect(proxy.url, { silenceMs: SILENCE_MS })
    const faults: Error[] = []
    const note = (error: Error) => faults.push(error)
    process.on('uncaughtException', note)
    try {
      await rows(distant.knex, 'SELECT 1')
      proxy.break('does not answer')
      await distant.close()
      await wait(SILENCE_MS + 200)
      assert.deepEqual(faults, [])
    } finally {
      process.off('uncaughtException', note)
      proxy.close()
    }
  })

  it('is not named with its password when its URL cannot be read', async () => {
    await assert.rejects(connect('mysql://user:pass#word@host:nowhere/name'), error => {
      assert.match((error as Error).message, /mysql:\/\/user:password@host/)
      return !inspect(error).includes('pass#word')
    })
  })

  it('is reported at once when it cannot be reached', async t => {
    if (engine === 'sqlite') return t.skip(NOT_ON_SQLITE)
    const nowhere = fresh.url.replace(/:\d+\//, ':1/')
    await assert.rejects(connect(nowhere), /ECONNREFUSED/)
  })
})

it('statements of SQLite that are asked at once leave the process to others every few milliseconds', async () => {
  const { database, drop } = await migratedDatabase('sqlite')
  try {
    const slow = 'WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 200000) SELECT max(i) FROM n'
    let turns = 0
    const turn = () => {
      turns += 1
      next = setImmediate(turn)
    }
    let next = setImmediate(turn)
    await Promise.all(Array.from({ length: 10 }, () => rows(database.knex, slow)))
    clearImmediate(next)
    assert.ok(turns >= 9, `${turns} turns during ten statements of more than 8 ms each`)
  } finally {
    await drop()
  }
})

it('SQLite keeps the pages of a large change in memory until it commits', async () => {
  const { database, drop } = await migratedDatabase('sqlite')
  assert.deepEqual(await rows(database.knex, 'PRAGMA cache_size'), [{ cache_size: -16_384 }])
  await drop()
})
