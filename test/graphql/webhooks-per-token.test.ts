import assert from 'node:assert/strict'
import { it } from 'node:test'
import { describeEachEngine } from '../support/databases.ts'
import { startReceiver } from '../support/receiver.ts'
import { startTestServer } from '../support/server.ts'

const CREATE = 'mutation($url: String!) { createWebhook(url: $url) { id } }'

/** As many pings as may wait at one url. */
const AT_ONCE = 4

describeEachEngine('an access token that has made as many webhooks as it may', engine => {
  it('is told the limit, before anything is sent', async () => {
    const server = await startTestServer(engine, { env: { TIDINGS_ROLES: 'api', TIDINGS_WEBHOOKS_PER_TOKEN: '2' } })
    const receiver = await startReceiver()
    try {
      for (let n = 0; n < 2; n++) assert.equal((await server.graphql(CREATE, { url: receiver.url })).errors, undefined)
      const { errors } = await server.graphql(CREATE, { url: receiver.url })
      assert.equal(errors?.[0]?.extensions.code, 'CONFLICT')
      assert.equal(errors?.[0]?.extensions.limit, 2)
      assert.match(errors![0]!.message, /TIDINGS_WEBHOOKS_PER_TOKEN/)
      assert.equal(receiver.requests.length, 2)
    } finally {
      await receiver.close()
      await server.stop()
    }
  })

  it('has made no more of them when many come at once', async () => {
    const server = await startTestServer(engine, { env: { TIDINGS_ROLES: 'api', TIDINGS_WEBHOOKS_PER_TOKEN: '2' } })
    const all = Promise.withResolvers<void>()
    // All have been let in, and come to be stored together.
    const receiver = await startReceiver({
      answer: async (_request, n) => {
        if (n === AT_ONCE) all.resolve()
        await all.promise
        return { status: 200 }
      },
    })
    try {
      const creating = Array.from({ length: AT_ONCE }, () => server.graphql(CREATE, { url: receiver.url }))
      const codes = (await Promise.all(creating)).map(({ errors }) => errors?.[0]?.extensions.code)
      assert.deepEqual(codes.toSorted(), ['CONFLICT', 'CONFLICT', undefined, undefined])
      const { data } = await server.graphql('{ webhooks { id } }')
      assert.equal(data.webhooks.length, 2)
    } finally {
      all.resolve()
      await receiver.close()
      await server.stop()
    }
  })
})
