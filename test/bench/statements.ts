import { setTimeout as wait } from 'node:timers/promises'
import { parseArgs } from 'node:util'
import pc from 'picocolors'
import { engines } from '../support/databases.ts'
import { must } from './client.ts'
import { openCounters } from './database-counters.ts'
import { startWorld } from './world.ts'

// Prints every statement of one `submitProjectReport` with one webhook, from the request until the delivery is
// settled, from the database's general log: npm run bench -- statements [--engine mysql]. The log is switched on for
// that moment, on the whole server.

const SUBMIT = `mutation ($projectId: UUID!, $quarter: String!, $submitterId: UUID!) {
  submitProjectReport(projectId: $projectId, quarter: $quarter, submitterId: $submitterId) { id } }`
const SHOWN = 220
/** By then other periodic statements are over. */
const QUIET_MS = 1_500

type Logged = { at: string; connection: number; statement: string }

const statementsOf = async (engine: string): Promise<Logged[]> => {
  const world = await startWorld(engine, { endpoints: 2 })
  const counters = await openCounters(world.given.url)
  const { ask } = counters
  const { publishers, projectIds, submitterId } = world.tenant
  const submit = async (projectId: string, quarter: string): Promise<void> => {
    const variables = { projectId, quarter, submitterId }
    must(await world.client.send(world.server().url, publishers[0]!, SUBMIT, variables))
    await world.settled()
  }
  try {
    // Statements of a token's first request do not belong to an event.
    for (const quarter of ['3000-1', '3000-2', '3000-3']) await submit(projectIds[0]!, quarter)
    await wait(QUIET_MS)
    const own = await ask<{ id: number }>('SELECT CONNECTION_ID() AS id')
    const [before] = await ask<{ log: number; output: string }>('SELECT @@general_log AS log, @@log_output AS output')
    await ask("SET GLOBAL log_output = 'TABLE'")
    await ask('SET GLOBAL general_log = 1')
    try {
      // Not by `settled`, which would be in the log.
      const variables = { projectId: projectIds[0], quarter: '3000-4', submitterId }
      must(await world.client.send(world.server().url, publishers[0]!, SUBMIT, variables))
      await wait(QUIET_MS)
    } finally {
      await ask(`SET GLOBAL general_log = ${before!.log}`)
      await ask(`SET GLOBAL log_output = '${before!.output}'`)
    }
    const connections = await ask<{ id: number }>(
      'SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()',
    )
    const ids = connections.map(({ id }) => id).filter(id => id !== own[0]!.id)
    return await ask<Logged>(
      `SELECT DATE_FORMAT(event_time, '%s.%f') AS at, thread_id AS connection,
         CONVERT(argument USING utf8mb4) AS statement
       FROM mysql.general_log WHERE command_type IN ('Query', 'Execute') AND thread_id IN (${ids.join(', ')})
       AND event_time > NOW(6) - INTERVAL ${2 * QUIET_MS} * 1000 MICROSECOND`,
    )
  } finally {
    await counters.close()
    await world.stop()
  }
}

const { values: options } = parseArgs({ options: { engine: { type: 'string', default: '' } } })
for (const engine of engines) {
  if (engine === 'sqlite' || !engine.startsWith(options.engine)) continue
  const logged = await statementsOf(engine)
  const started = Number(logged[0]?.at)
  console.log(pc.bold(`\n${engine}: one submitProjectReport with one webhook`))
  console.log(pc.dim('        ms  connection  statement'))
  for (const [n, { at, connection, statement }] of logged.entries()) {
    const text = statement.replaceAll(/\s+/g, ' ').trim()
    const shown = text.length > SHOWN ? `${text.slice(0, SHOWN)}…` : text
    const ms = ((Number(at) - started + 60) % 60) * 1000
    console.log(
      `${String(n + 1).padStart(3)} ${ms.toFixed(1).padStart(6)}  ${String(connection).padStart(10)}  ${shown}`,
    )
  }
  const commits = logged.filter(({ statement }) => /^commit/i.test(statement)).length
  console.log(`${logged.length} statements, ${commits} of them COMMIT; the looks of an idle second are among them`)
}
