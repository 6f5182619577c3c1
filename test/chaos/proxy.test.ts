import assert from 'node:assert/strict'
import { after, describe, test } from 'node:test'
import { createConnection } from 'mysql2/promise'
import { engines, freshDatabase } from '../support/databases.ts'
import { startProxy } from './proxy.ts'
import { atMost } from './stage/stage.ts'

for (const engine of engines.filter(name => name !== 'sqlite')) {
  describe(`a proxy before a database (${engine})`, async () => {
    const fresh = await freshDatabase(engine)
    const proxy = await startProxy(fresh.url)
    const open = () => createConnection(proxy.url)
    after(async () => {
      proxy.close()
      await fresh.drop()
    })

    test('stops a statement that matches, and releases it with all that is behind it', async () => {
      const [one, other] = [await open(), await open()]
      const hold = proxy.hold(/SELECT 'held'/)
      const held = one.query("SELECT 'held'")
      assert.equal((await hold.caught).text, "SELECT 'held'")
      await other.query("SELECT 'passes'")
      assert.equal(await atMost(200, held), undefined)
      hold.end()
      assert.ok(await held)
      await Promise.all([one.end(), other.end()])
    })

    test('stops a statement that is executed as it was prepared', async () => {
      const one = await open()
      await one.execute('SELECT ? AS prepared', [1])
      const hold = proxy.hold(/AS prepared/)
      const held = one.execute('SELECT ? AS prepared', [2])
      await hold.caught
      assert.equal(await atMost(200, held), undefined)
      hold.end()
      assert.ok(await held)
      await one.end()
    })

    test('holds back the answer of a statement that the database has done', async () => {
      const [one, other] = [await open(), await open()]
      await one.query('CREATE TABLE done (id INT)')
      const hold = proxy.hold(/INSERT INTO done/, { answer: true })
      const held = one.query('INSERT INTO done VALUES (1)')
      await hold.caught
      const [rows] = await other.query('SELECT * FROM done')
      assert.equal((rows as unknown[]).length, 1)
      hold.end()
      await held
      await Promise.all([one.end(), other.end()])
    })

    test('answers with an error, and gives the database another statement in its place', async () => {
      const one = await open()
      await one.query('CREATE TABLE undone (id INT)')
      await one.beginTransaction()
      await one.query('INSERT INTO undone VALUES (1)')
      const failing = proxy.fail(/^COMMIT/, { errno: 3101, sqlState: '40000', message: 'no', instead: 'ROLLBACK' })
      await assert.rejects(one.commit(), { errno: 3101, sqlState: '40000' })
      failing.end()
      assert.equal(failing.failed(), 1)
      const [rows] = await one.query('SELECT * FROM undone')
      assert.deepEqual(rows, [])
      await one.end()
    })

    test('goes dark without a word to the database, and lets what waited through afterwards', async () => {
      const one = await open()
      proxy.hole()
      const waiting = one.query('SELECT 1')
      assert.equal(await atMost(200, waiting), undefined)
      proxy.mend()
      assert.ok(await waiting)
      await one.end()
    })

    test('takes each way so much longer', async () => {
      const one = await open()
      proxy.delay(50)
      const before = performance.now()
      await one.query('SELECT 1')
      const tookMs = performance.now() - before
      proxy.delay(0)
      assert.ok(tookMs >= 100, `took ${tookMs} ms`)
      await one.end()
    })

    test('breaks connections, and refuses new ones until it is mended', async () => {
      const one = await open()
      proxy.refuse()
      await assert.rejects(one.query('SELECT 1'))
      await assert.rejects(open())
      proxy.mend()
      await (await open()).end()
    })
  })
}
