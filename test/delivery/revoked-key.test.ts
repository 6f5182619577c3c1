import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { it } from 'node:test'
import { setTimeout as wait } from 'node:timers/promises'
import { createSealer } from '../../server/keys/seal.ts'
import { revokeKey } from '../../server/keys/signing-keys.ts'
import { testClock } from '../support/clock.ts'
import { describeEachEngine } from '../support/databases.ts'
import { startReceiver } from '../support/receiver.ts'
import { startFixture } from './fixture.ts'

describeEachEngine('while the next signing key is being made known', engine => {
  it('nothing is sent, and all of it afterwards, with the next key', async () => {
    const clock = testClock()
    const masterKey = randomBytes(32)
    const fixture = await startFixture(engine, clock, { masterKey: masterKey.toString('base64') })
    const receiver = await startReceiver()
    try {
      await fixture.webhook(receiver.url)
      const loop = await fixture.startLoop()
      await fixture.emit(1, { through: loop })
      await receiver.waitFor(requests => requests.length === 1)
      const { keyring, database } = fixture
      const leaked = keyring.current().kid
      const { signsFrom } = (await revokeKey(database, createSealer([masterKey]), leaked, clock.now()))!
      await keyring.refresh()
      await fixture.emit(1, { through: loop })
      await fixture.emit(1)
      const before = process.cpuUsage()
      loop.wake()
      // Longer than its looks are apart: what would be sent has been.
      await wait(2_500)
      const { user } = process.cpuUsage(before)
      assert.equal(receiver.requests.length, 1)
      assert.ok(user < 1_500_000, `it waits without looking again and again: ${user} µs`)
      clock.set(signsFrom)
      const requests = await receiver.waitFor(all => all.length === 3)
      const kids = requests.map(({ headers }) => {
        const [head] = headers.authorization!.replace('Bearer ', '').split('.')
        return JSON.parse(Buffer.from(head!, 'base64url').toString()).kid
      })
      assert.deepEqual(kids, [leaked, keyring.current().kid, keyring.current().kid])
    } finally {
      await receiver.close()
      await fixture.stop()
    }
  })
})
