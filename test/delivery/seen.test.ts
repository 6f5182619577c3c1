import assert from 'node:assert/strict'
import { beforeEach, describe, it, mock } from 'node:test'
import { BELIEVED_MS, SeenWebhooks, type Standing } from '../../server/delivery/pull/seen.ts'

describe('what a token was found to see', () => {
  let now = 0
  let reads = 0
  let found: Standing | undefined
  const read = async () => {
    reads += 1
    return found
  }
  beforeEach(t => {
    const clock = mock.method(performance, 'now', () => now)
    if ('after' in t) t.after(() => clock.mock.restore())
    reads = 0
    found = { status: 'active', transport: 'pull' }
  })

  it('is not read again within a second, for this token and webhook', async () => {
    const seen = new SeenWebhooks()
    for (let n = 0; n < 3; n++) assert.deepEqual(await seen.find('token', 'webhook', read), found)
    assert.equal(reads, 1)
    await seen.find('other', 'webhook', read)
    await seen.find('token', 'other', read)
    assert.equal(reads, 3)
    now += BELIEVED_MS
    found = undefined
    assert.equal(await seen.find('token', 'webhook', read), undefined)
  })

  it('is read again once this process has changed something, also while it was read', async () => {
    const seen = new SeenWebhooks()
    await seen.find('token', 'webhook', read)
    seen.forget()
    const begun = Promise.withResolvers<Standing>()
    const reading = seen.find('token', 'webhook', () => begun.promise)
    seen.forget()
    begun.resolve(found!)
    await reading
    found = { status: 'disabled', transport: 'pull' }
    assert.deepEqual(await seen.find('token', 'webhook', read), found)
  })

  it('is read each time unless it is active and pulled', async () => {
    const others = [
      undefined,
      { status: 'disabled', transport: 'pull' },
      { status: 'active', transport: 'push' },
    ] as const
    for (const other of others) {
      const seen = new SeenWebhooks()
      found = other
      for (let n = 0; n < 2; n++) assert.deepEqual(await seen.find('token', 'webhook', read), other)
    }
    assert.equal(reads, 2 * others.length)
  })
})
