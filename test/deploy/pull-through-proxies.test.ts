import assert from 'node:assert/strict'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { describe, it } from 'node:test'
import { setTimeout as wait } from 'node:timers/promises'
import { createAccessToken } from '../../server/domain/access-tokens.ts'
import { createSealer } from '../../server/keys/seal.ts'
import { codeOf } from '../../shared/errors.ts'
import { masterKey, startServerProcess } from '../delivery/server-process.ts'
import { migratedDatabase } from '../support/databases.ts'
import { freePort } from '../support/ports.ts'
import { missing, type ProxyServer, proxies, startProxy } from '../support/proxies.ts'
import { puller } from '../support/puller.ts'
import { addProject, sendGraphql } from '../support/server.ts'
import { atFullSize } from '../support/size.ts'

const SUBMIT = `mutation($projectId: UUID!, $quarter: String!, $submitterId: UUID!) {
  submitProjectReport(projectId: $projectId, quarter: $quarter, submitterId: $submitterId) { id } }`
const CLIENTS = atFullSize(200, 50)
/** The longest wait that there is. */
const WAIT_SECONDS = atFullSize(30, 3)

for (const proxy of proxies) {
  describe(`clients that pull through ${proxy.name}, as deploy/${proxy.file} has it`, { skip: missing(proxy) }, () => {
    it('wait as long as they may, many at once, and are given what is committed meanwhile', () => pullThrough(proxy))
  })
}

/** Asks again after the time that the server gives, where it has no place for all that come at once. */
const onceAdmitted = async <T>(ask: () => Promise<T>): Promise<T> => {
  try {
    return await ask()
  } catch (error) {
    if (codeOf(error) !== 'UNAVAILABLE') throw error
    await wait(1000 * (error as { retryAfterSeconds: number }).retryAfterSeconds)
    return onceAdmitted(ask)
  }
}

const pullThrough = async (proxy: ProxyServer): Promise<void> => {
  const folder = mkdtempSync(path.join(tmpdir(), 'tidings-proxy-'))
  const stops: (() => unknown)[] = [() => rmSync(folder, { recursive: true, force: true })]
  try {
    const given = await migratedDatabase('sqlite')
    stops.push(() => given.drop())
    const sealer = createSealer([Buffer.from(masterKey, 'base64')])
    const credentials = await given.database.transaction(trx =>
      createAccessToken(trx, sealer, { name: 'behind', permissions: ['admin'] }, Date.now()),
    )
    const [port, serverPort] = [await freePort(), String(await freePort())]
    const base = `http://127.0.0.1:${port}`
    const settings = { TIDINGS_BASE_URL: base, TIDINGS_BEHIND_PROXY: 'true', TIDINGS_RATE_LIMIT: '0' }
    const server = await startServerProcess(given.url, { ...settings, TIDINGS_PORT: serverPort })
    stops.push(() => server.end('SIGKILL'))
    stops.push(await startProxy(proxy, folder, port, serverPort))

    const graphql = (document: string, variables: object = {}) => sendGraphql(base, credentials, document, variables)
    const client = puller({ graphql } as never)
    const { id } = await client.register()
    const waiting = Array.from({ length: CLIENTS }, () =>
      onceAdmitted(async () => {
        const beganAt = performance.now()
        const taken = await client.take(id, { waitSeconds: WAIT_SECONDS })
        return { taken, ms: performance.now() - beganAt }
      }).then(async ({ taken, ms }) => {
        // The longest wait is as long as the lease.
        const answered = taken.length > 0 ? await onceAdmitted(() => client.answer(taken)) : []
        return { taken, answered, ms }
      }),
    )
    const { projectId, userId } = await addProject(given.database)
    const submitting = onceAdmitted(() => client.ask(SUBMIT, { projectId, quarter: '2026-3', submitterId: userId }))
    const [ended] = await Promise.all([Promise.all(waiting), submitting])
    const [one, ...others] = ended.filter(({ taken }) => taken.length > 0)
    assert.equal(others.length, 0)
    const shortest = Math.min(...ended.filter(({ taken }) => taken.length === 0).map(({ ms }) => ms))
    assert.ok(shortest >= 1000 * WAIT_SECONDS, `a wait ended after ${shortest} ms`)
    assert.equal(one!.answered[0]!.delivery!.status, 'delivered')
  } finally {
    for (const stop of stops.reverse()) await stop()
  }
}
