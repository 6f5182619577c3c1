import assert from 'node:assert/strict'
import { it } from 'node:test'
import { users } from '../../server/domain/resources.ts'
import { otherWork } from '../../server/event-loop.ts'
import { count, find } from '../../server/mango/find.ts'
import { unmetered } from '../../server/mango/meter.ts'
import { migratedDatabase } from '../support/databases.ts'

it('a search whose patterns may take long sends no statement before it has leave', async () => {
  const { database, drop } = await migratedDatabase('sqlite')
  try {
    let statements = 0
    database.knex.on('query', () => {
      statements += 1
    })
    // SQL can match these by itself.
    const selector = { $or: Array.from({ length: 450 }, (_, n) => ({ name: { $regex: `j${n}` } })) }
    const all = () => {}
    const searches = {
      find: (meter: typeof unmetered) => find(database.knex, users, { selector, limit: 10 }, all, { meter }),
      count: (meter: typeof unmetered) => count(database.knex, users, { selector, by: ['name'] }, all, { meter }),
    }
    for (const [name, search] of Object.entries(searches)) {
      const leave = Promise.withResolvers<void>()
      statements = 0
      const searched = search({ ...unmetered, turn: () => leave.promise } as typeof unmetered)
      for (let n = 0; n < 20; n++) await otherWork()
      assert.equal(statements, 0, name)
      leave.resolve()
      await searched
      assert.equal(statements, 1, name)
    }
  } finally {
    await drop()
  }
})
