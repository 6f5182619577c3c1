import assert from 'node:assert/strict'
import { once } from 'node:events'
import { it } from 'node:test'
import { createAccessToken } from '../../server/domain/access-tokens.ts'
import { createSealer } from '../../server/keys/seal.ts'
import { masterKey, startServerProcess } from '../delivery/server-process.ts'
import { migratedDatabase } from '../support/databases.ts'
import { eventually } from '../support/eventually.ts'
import { freePort } from '../support/ports.ts'
import { addProject, sendGraphql } from '../support/server.ts'
import { startTidings, temporaryFolder } from './tidings.ts'

const SUBMIT = `mutation($projectId: UUID!, $quarter: String!, $submitterId: UUID!) {
  submitProjectReport(projectId: $projectId, quarter: $quarter, submitterId: $submitterId) { id } }`

it('listen --pull goes on after its machine has slept and its server was killed and started again', async t => {
  const given = await migratedDatabase('sqlite')
  t.after(() => given.drop())
  const sealer = createSealer([Buffer.from(masterKey, 'base64')])
  const credentials = await given.database.transaction(trx =>
    createAccessToken(trx, sealer, { name: 'laptop', permissions: ['admin'] }, Date.now()),
  )
  const port = String(await freePort())
  const start = () => startServerProcess(given.url, { TIDINGS_PORT: port })
  let server = await start()
  t.after(() => server.end('SIGKILL'))
  const env = {
    TIDINGS_URL: server.url,
    TIDINGS_API_KEY: credentials.apiKey,
    TIDINGS_API_SECRET: credentials.apiSecret,
  }
  const child = startTidings(['listen', '--pull', '--count', '3'], { home: temporaryFolder(), env })
  t.after(() => child.kill('SIGKILL'))
  let [out, messages] = ['', '']
  child.stdout.on('data', text => (out += text))
  child.stderr.on('data', text => (messages += text))
  const ended = once(child, 'close')
  const said = (what: RegExp) =>
    eventually(
      String(what),
      () => messages,
      text => what.test(text),
    )
  const emit = async () => {
    const { projectId, userId } = await addProject(given.database)
    const variables = { projectId, quarter: '2026-3', submitterId: userId }
    const { errors } = await sendGraphql(server.url, credentials, SUBMIT, variables)
    assert.equal(errors, undefined)
  }
  const received = (count: number) =>
    eventually(
      'what it received',
      () => out.split('"project_report_').length - 1,
      seen => seen === count,
    )

  await said(/Registered as webhook/)
  child.kill('SIGSTOP')
  await emit()
  child.kill('SIGCONT')
  await received(1)
  await server.end('SIGKILL')
  await said(/Trying again until it can/)
  server = await start()
  await said(/The server is back/)
  await emit()
  await received(2)
  child.kill('SIGSTOP')
  await server.end('SIGKILL')
  server = await start()
  await emit()
  child.kill('SIGCONT')
  assert.deepEqual(await ended, [0, null], messages)
  const statuses = await given.database.knex('deliveries').pluck('status')
  assert.deepEqual(new Set(statuses), new Set(['delivered']))
})
