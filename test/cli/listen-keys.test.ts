import assert from 'node:assert/strict'
import { test } from 'node:test'
import { fileURLToPath } from 'node:url'
import { startIssuer } from './issuer.ts'
import { connectedTo, startStubServer } from './stub-server.ts'
import { noTerminal, openTerminal } from './terminal.ts'
import { startTidings, temporaryFolder } from './tidings.ts'

const PROGRAM = fileURLToPath(new URL('../../bin/tidings.js', import.meta.url))
const issuer = await startIssuer()
const home = temporaryFolder()

test('keys send the last delivery again, show it whole, and choose the next answer', { skip: noTerminal }, async () => {
  const stub = await startStubServer(() => ({ data: { made: { id: 'made-again' } } }))
  const terminal = await openTerminal(
    [process.execPath, PROGRAM, 'listen', '--port', '0', '--issuer', issuer.url, '--no-color'],
    { env: { ...connectedTo(stub), XDG_CONFIG_HOME: home }, columns: 120 },
  )
  const screen = await terminal.waitFor(/Keys: r sends/)
  const url = /Listening on (\S+)\. /.exec(screen)![1]!
  await terminal.press('r')
  await terminal.waitFor('Nothing has come yet')
  const eventId = '01930000-0000-7000-8000-0000000000aa'
  await issuer.deliver(url, { eventType: 'token_expired', eventId })
  await terminal.waitFor(eventId)
  await terminal.press('d')
  await terminal.waitFor(/"eventType": "token_expired"/)
  await terminal.press('r')
  await terminal.waitFor('Queued again as made-again')
  assert.deepEqual(stub.received.at(-1)!.variables, { id: eventId })
  await terminal.press('n')
  await terminal.waitFor('The next delivery is answered: 500')
  assert.equal((await issuer.deliver(url, { eventType: 'token_expired' })).status, 500)
  assert.equal((await issuer.deliver(url, { eventType: 'token_expired' })).status, 200)
  await terminal.press('q')
  await terminal.waitFor(/Received 3 deliveries, 0 of them not valid/)
})

test('what a filter does not match is answered 200, and neither shown nor counted', async () => {
  const wanted = '01930000-0000-7000-8000-0000000000bb'
  const stub = await startStubServer(({ variables }) => {
    const [first] = (variables.query as { selector: { $and?: { id: string }[] } }).selector.$and ?? []
    return { data: { deliveries: first?.id === wanted ? [{ id: wanted }] : [] } }
  })
  const filter = '{"event.projectId":"p"}'
  const line = ['listen', '--port', '0', '--issuer', issuer.url, '--filter', filter, '--once', '--answer', '503']
  const child = startTidings(line, { home, env: connectedTo(stub) })
  let told = ''
  const url = await new Promise<string>(resolve =>
    child.stderr.on('data', chunk => {
      told += chunk
      const found = /Listening on (\S+)\. /.exec(told)?.[1]
      if (found) resolve(found)
    }),
  )
  let shown = ''
  child.stdout.on('data', chunk => {
    shown += chunk
  })
  const ended = new Promise(resolve => child.once('close', resolve))
  assert.equal((await issuer.deliver(url, { eventType: 'token_expired' })).status, 200)
  assert.equal((await issuer.deliver(url, { eventType: 'token_expired', eventId: wanted })).status, 503)
  await ended
  assert.deepEqual(
    shown
      .trim()
      .split('\n')
      .map(row => JSON.parse(row).eventId),
    [wanted],
  )
})
