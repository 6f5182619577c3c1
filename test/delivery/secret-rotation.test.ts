import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { mkdtempSync, rmSync } from 'node:fs'
import { createRequire } from 'node:module'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after, it } from 'node:test'
import { keyOfSecret, standardSignature } from '../../shared/standard-webhooks.ts'
import { describeEachEngine } from '../support/databases.ts'
import { eventually } from '../support/eventually.ts'
import { type ReceivedRequest, startReceiver } from '../support/receiver.ts'
import { addProject, startTestServer } from '../support/server.ts'
import { atFullSize, isAtFullSize } from '../support/size.ts'

const QUARTERS = ['2025-1', '2025-2', '2025-3', '2025-4']
const PROJECTS = atFullSize(50, 12)
const AT_ONCE = 8

type Verifies = (request: ReceivedRequest, secret: string) => boolean

/** As the libraries do it, which know one secret: any of the signatures may be by that. */
const ownVerifies: Verifies = ({ headers, rawBody }, secret) => {
  const content = { id: String(headers['webhook-id']), timestampSeconds: String(headers['webhook-timestamp']) }
  const expected = standardSignature(keyOfSecret(secret)!, { ...content, body: rawBody })
  return String(headers['webhook-signature']).split(' ').includes(expected)
}

/** At night the library itself, which is downloaded. */
const libraryVerifies = (): Verifies => {
  const folder = mkdtempSync(path.join(tmpdir(), 'tidings-rotation-'))
  after(() => rmSync(folder, { recursive: true, force: true }))
  const args = ['install', '--no-save', '--no-audit', '--prefix', '.', 'standardwebhooks']
  const { status, stderr } = spawnSync('npm', args, { cwd: folder, encoding: 'utf8' })
  assert.equal(status, 0, stderr)
  const { Webhook } = createRequire(path.join(folder, 'x.js'))('standardwebhooks')
  return ({ rawBody, headers }, secret) => {
    try {
      new Webhook(secret).verify(rawBody, headers)
      return true
    } catch {
      return false
    }
  }
}
const verifies = isAtFullSize ? libraryVerifies() : ownVerifies

describeEachEngine('a rotation of a webhook’s secret', engine => {
  it('in a stream of events and retries has none refused, by a receiver that changes over later', async t => {
    const server = await startTestServer(engine)
    t.after(() => server.stop())
    let known: string | undefined
    let refused = 0
    const failed = new Set<string>()
    const delivered = new Set<string>()
    const receiver = await startReceiver({
      answer: request => {
        if (known === undefined) return { status: 200 }
        if (!verifies(request, known)) {
          refused += 1
          return { status: 401 }
        }
        const id = String(request.headers['webhook-id'])
        // Each seventh is sent again, by way of the stored secrets.
        if (delivered.size % 7 === 3 && !failed.has(id)) {
          failed.add(id)
          return { status: 503 }
        }
        delivered.add(id)
        return { status: 200 }
      },
    })
    t.after(() => receiver.close())
    const asked = async (document: string, variables: object) => {
      const { data, errors } = await server.graphql(document, variables)
      assert.equal(errors, undefined, JSON.stringify(errors))
      return data.made
    }
    const create = 'mutation($url: String!) { made: createWebhook(url: $url, signing: standard) { id secret } }'
    const { id, secret } = await asked(create, { url: receiver.url })
    known = secret
    const rotate = (graceSeconds: number) =>
      asked(
        `mutation($id: UUID!, $graceSeconds: Int) {
          made: rotateWebhookSecret(id: $id, graceSeconds: $graceSeconds) { secret } }`,
        { id, graceSeconds },
      )

    const projects = await Promise.all(Array.from({ length: PROJECTS }, () => addProject(server.database)))
    const events = projects.flatMap(({ projectId, userId }) =>
      QUARTERS.map(quarter => ({ projectId, userId, quarter })),
    )
    const submit = `mutation($projectId: UUID!, $userId: UUID!, $quarter: String!) {
      made: submitProjectReport(projectId: $projectId, quarter: $quarter, submitterId: $userId) { id } }`
    const rotated = Promise.withResolvers<string>()
    let sent = 0
    const stream = events.values()
    const work = async () => {
      for (const event of stream) {
        await asked(submit, event)
        sent += 1
        // The others go on meanwhile.
        if (sent === Math.floor(events.length / 3)) rotated.resolve((await rotate(600)).secret)
        if (sent === Math.floor((events.length * 2) / 3)) known = await rotated.promise
      }
    }
    await Promise.all(Array.from({ length: AT_ONCE }, work))
    await eventually(
      'all deliveries, or a refusal',
      () => [delivered.size === events.length, refused > 0],
      found => found.includes(true),
    )
    assert.deepEqual({ refused, delivered: delivered.size }, { refused: 0, delivered: events.length })
    assert.equal(known, await rotated.promise)
    assert.ok(failed.size > 0)
    // Without a grace it would have been refused.
    await rotate(0)
    await server.graphql('mutation($id: UUID!) { pingWebhook(id: $id) { id } }', { id })
    await eventually(
      'the refusal',
      () => refused,
      count => count === 1,
    )
  })
})
