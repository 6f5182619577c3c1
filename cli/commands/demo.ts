import { mkdtempSync, rmSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { Command } from '@commander-js/extra-typings'
import type { EventType } from '../../shared/vocabulary.ts'
import { graphql } from '../connection/client.ts'
import { type Connection, connect } from '../connection/connection.ts'
import { Session } from '../connection/session.ts'
import { CliError, exitCodes, Finished } from '../errors.ts'
import type { Arrival } from '../listen/receiver.ts'
import { examples } from '../options.ts'
import type { Output } from '../output/output.ts'
import { duration } from '../output/time.ts'
import { type Delivery, deliveryFields } from '../resources/timeline.ts'

const LIMIT_MS = 14_000

export const demoCommand = () =>
  new Command('demo')
    .summary('see the whole job end to end in a few seconds')
    .description(
      'Starts a receiver on this machine, registers it, submits and approves a report, answers once with 500, ' +
        'and shows the deliveries arrive, retried and verified. It uses the sandbox if one is running, ' +
        'else a temporary server of its own: never a server that matters. ' +
        'Exits 0 only if everything worked.',
    )
    .addHelpText('after', examples(['See it', 'tidings demo'], ['For a script', 'tidings demo --output json --quiet']))
    .action(async (_options, command) => {
      const { output, settings } = new Session(command)
      const interruption = new Interruption(output)
      const sandbox =
        settings.profile?.value === 'sandbox' && settings.url?.source === 'profile sandbox'
          ? connect(settings)
          : undefined
      if (sandbox && (await isReady(sandbox.url))) {
        output.message(`On the sandbox at ${sandbox.url.origin}`)
        const deliveryId = await interruption.endsWell(perform(sandbox, output, interruption))
        output.message(`\nThe retried one's story:  tidings deliveries show ${deliveryId}`)
        return
      }
      output.message('No sandbox is running; using a temporary server that is removed at the end')
      await interruption.endsWell(
        withThrowAwayServer(connection => perform(connection, output, interruption), interruption),
      )
      output.message('\nTo keep a server and look around: npm start')
    })

const SIGNALS = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const

/**
 * Keeps a signal until everything is cleaned up: the next step then throws an error that passes through all cleanup.
 */
class Interruption {
  readonly #output: Output
  readonly #signalled = Promise.withResolvers<never>()
  #signal: NodeJS.Signals | undefined

  constructor(output: Output) {
    this.#output = output
    this.#signalled.promise.catch(() => {})
    for (const signal of SIGNALS) process.on(signal, this.#note)
  }

  readonly #note = (signal: NodeJS.Signals): void => {
    if (this.#signal !== undefined) return
    this.#signal = signal
    this.#output.message('\nCleaning up …')
    this.#signalled.reject(new Finished('interrupted'))
  }

  /** Resolves to the result of the work, or rejects with the signal if that comes first. */
  or<T>(work: Promise<T>): Promise<T> {
    return Promise.race([this.#signalled.promise, work])
  }

  /** Ends the process by its signal after the cleanup. */
  async endsWell<T>(work: Promise<T>): Promise<T> {
    try {
      return await work
    } finally {
      for (const signal of SIGNALS) process.off(signal, this.#note)
      // A closed output counts as a signal, with a known exit code.
      if (this.#signal !== undefined && process.exitCode !== undefined) process.exit()
      if (this.#signal !== undefined) process.kill(process.pid, this.#signal)
    }
  }
}

const isReady = async (url: URL): Promise<boolean> => {
  try {
    return (await fetch(new URL('/.well-known/jwks.json', url), { signal: AbortSignal.timeout(2_000) })).ok
  } catch {
    return false
  }
}

/**
 * Runs the demo and prints each step when it has happened. Returns the retried delivery's id. Throws a CliError at the
 * first step that fails.
 */
const perform = async (connection: Connection, output: Output, interruption: Interruption): Promise<string> => {
  const arrivals: Arrival[] = []
  const receiver = await startReceiver(connection, output, arrivals)
  const stage: Stage = {
    connection,
    output,
    arrivals,
    done: text => output.message(`${output.messageColours.green('✓')} ${text}`),
    arrived: (eventType, answered) =>
      until(
        () => arrivals.some(it => it.eventType === eventType && it.answered === answered && it.verification?.ok),
        `no verified delivery of ${eventType} that was answered ${answered}`,
      ),
  }
  try {
    stage.done(`A receiver listens at ${receiver.url}`)
    // A signal does not interrupt this, because what it creates must be cleaned up.
    const { createWebhook } = await graphql<{ createWebhook: { id: string } }>(
      connection,
      'mutation ($url: String!) { createWebhook(url: $url) { id } }',
      { url: receiver.url },
    )
    return await interruption.or(tellStory(stage, createWebhook.id))
  } finally {
    await disableAt(receiver.url, connection, output)
    await receiver.close()
  }
}

interface Stage {
  connection: Connection
  output: Output
  arrivals: Arrival[]
  done: (text: string) => void
  /** Resolves when a verified delivery of this type has come and was answered so. */
  arrived: (eventType: EventType, answered: number) => Promise<unknown>
}

/** A receiver that fails at first, and prints what arrives. */
const startReceiver = async (connection: Connection, output: Output, arrivals: Arrival[]) => {
  const { startLocalReceiver } = await import('../listen/receiver.ts')
  const colours = output.messageColours
  return startLocalReceiver({
    port: 0,
    path: '/hooks',
    keysUrl: new URL('/.well-known/jwks.json', connection.url).href,
    issuer: connection.url.origin,
    responses: [
      { kind: 'status', statusCode: 500 },
      { kind: 'status', statusCode: 200 },
    ],
    onDelivery: arrival => {
      arrivals.push(arrival)
      const { eventType, answered, verification } = arrival
      const verified = verification?.ok ? colours.green('token verified') : colours.red('token refused')
      const colour = answered === 200 ? colours.green : colours.yellow
      output.message(
        `  ${colours.dim('→')} ${(eventType ?? '?').padEnd(34)} ${verified}, answered ${colour(String(answered))}`,
      )
    },
  })
}

const tellStory = async (stage: Stage, webhookId: string): Promise<string> => {
  const { connection, done, arrived } = stage
  await arrived('ping', 200)
  done('It answered the ping, and is registered as a webhook')

  const { project, user, quarter } = await choose(connection)
  const { submitProjectReport } = await graphql<{ submitProjectReport: { id: string } }>(
    connection,
    'mutation ($projectId: UUID!, $quarter: String!, $submitterId: UUID!) ' +
      '{ submitProjectReport(projectId: $projectId, quarter: $quarter, submitterId: $submitterId) { id } }',
    { projectId: project.id, quarter, submitterId: user.id },
  )
  done(`${user.name} submitted the ${quarter} report of ${project.name}`)
  await arrived('project_report_quarterly_submitted', 500)
  done('The receiver answered 500, so the delivery is retried')

  await graphql(
    connection,
    'mutation ($id: UUID!, $approverId: UUID!) { approveProjectReport(id: $id, approverId: $approverId) { id } }',
    { id: submitProjectReport.id, approverId: user.id },
  )
  done('The report was approved')
  await arrived('project_report_quarterly_approved', 200)
  await arrived('project_report_quarterly_submitted', 200)
  return conclude(stage, webhookId)
}

/** Shows that the retry carried the same event; returns the retried delivery's id. */
const conclude = async ({ connection, output, arrivals, done }: Stage, webhookId: string): Promise<string> => {
  const deliveries = await settled(connection, webhookId)
  const retried = deliveries.find(delivery => delivery.eventType === 'project_report_quarterly_submitted')!
  const ids = arrivals.filter(each => each.eventType === retried.eventType).map(each => each.eventId)
  if (retried.attemptCount !== 2 || new Set(ids).size !== 1) {
    throw failed(`the retried delivery has ${retried.attemptCount} attempts under ${new Set(ids).size} event ids`)
  }
  const [first, second] = retried.attempts
  const waitedMs = Date.parse(second!.startedAt) - Date.parse(first!.startedAt)
  done(
    `All ${deliveries.length} deliveries were delivered; the retry came after ${duration(waitedMs)}, ` +
      'under the same eventId',
  )
  const shown = deliveries.map(({ id, eventType, status, attemptCount }) => ({ id, eventType, status, attemptCount }))
  output.one({ webhookId, deliveries: shown }, () => '')
  return retried.id
}

/**
 * Finds the webhook by its URL, because the answer to its creation may have been lost; no other webhook uses this port
 * now.
 */
const disableAt = async (url: string, connection: Connection, output: Output): Promise<void> => {
  try {
    const { webhooks } = await graphql<{ webhooks: { id: string }[] }>(
      connection,
      'query ($url: String!) { webhooks(query: {selector: {url: $url, status: "active"}}) { id } }',
      { url },
    )
    for (const { id } of webhooks) {
      await graphql(connection, 'mutation ($id: UUID!) { upsertWebhook(id: $id, status: disabled) { id } }', { id })
      await graphql(connection, 'mutation ($id: UUID!) { deleteWebhook(id: $id) }', { id })
    }
  } catch (error) {
    output.warning(
      `A webhook for ${url} may be left: ${(error as Error).message} See with: tidings webhooks list --status active`,
    )
  }
}

type Named = { id: string; name: string }

/** A project, a user, and the latest quarter before this one whose report nobody has submitted. */
const choose = async (connection: Connection): Promise<{ project: Named; user: Named; quarter: string }> => {
  const { projects, users } = await graphql<{ projects: Named[]; users: Named[] }>(
    connection,
    '{ projects(query: {limit: 1}) { id name } users(query: {limit: 1}) { id name } }',
  )
  const [project] = projects
  const [user] = users
  if (!project || !user) throw failed('the server has no project or no user')
  const { projectReports } = await graphql<{ projectReports: { quarter: string }[] }>(
    connection,
    'query ($projectId: UUID!) { projectReports(query: {selector: {projectId: $projectId, status: ' +
      '{_ne: "open"}}}) { quarter } }',
    { projectId: project.id },
  )
  const taken = new Set(projectReports.map(report => report.quarter))
  const now = new Date()
  let index = now.getUTCFullYear() * 4 + Math.floor(now.getUTCMonth() / 3) - 1
  while (taken.has(quarterAt(index))) index -= 1
  return { project, user, quarter: quarterAt(index) }
}

const quarterAt = (index: number): string => `${Math.floor(index / 4)}-${(index % 4) + 1}`

/** The webhook's deliveries, once all of them are delivered. */
const settled = async (connection: Connection, webhookId: string): Promise<Delivery[]> => {
  let deliveries: Delivery[] = []
  await until(async () => {
    const found = await graphql<{ deliveries: Delivery[] }>(
      connection,
      `query ($webhookId: UUID!) { deliveries(query: {selector: {webhookId: $webhookId}}) { ${deliveryFields} } }`,
      { webhookId },
    )
    deliveries = found.deliveries
    return deliveries.every(delivery => delivery.status === 'delivered')
  }, 'the server does not show all deliveries as delivered')
  return deliveries
}

const until = async (condition: () => boolean | Promise<boolean>, otherwise: string): Promise<void> => {
  const startedMs = performance.now()
  while (!(await condition())) {
    if (performance.now() - startedMs > LIMIT_MS) throw failed(otherwise)
    await sleep(50)
  }
}

const failed = (what: string): CliError =>
  new CliError(exitCodes.failed, 'DEMO_FAILED', `The demo failed: ${what}.`, 'TIDINGS_LOG_LEVEL=debug tells more.')

/** A server in this process, on a database that is deleted afterwards, which retries sooner than a real one. */
const withThrowAwayServer = async (
  work: (connection: Connection) => Promise<unknown>,
  interruption: Interruption,
): Promise<void> => {
  const { prepareSandbox } = await import('../../server/sandbox.ts')
  const { startServer } = await import('../../server/main.ts')
  const { createLog } = await import('../../server/log.ts')
  const home = mkdtempSync(join(tmpdir(), 'tidings-demo-'))
  try {
    const { config, credentials } = await prepareSandbox({
      TIDINGS_HOME: home,
      TIDINGS_PORT: String(await freePort()),
      TIDINGS_RETRY_SCHEDULE: '1,2,4',
      TIDINGS_LOG_LEVEL: process.env.TIDINGS_LOG_LEVEL ?? 'error',
    })
    const server = await startServer(config, createLog(config.logLevel))
    try {
      await interruption.or(server.ready)
      await work({ url: new URL(server.url), apiKey: credentials.apiKey, apiSecret: credentials.apiSecret })
    } finally {
      await server.stop()
    }
  } finally {
    rmSync(home, { recursive: true, force: true })
  }
}

const freePort = (): Promise<number> =>
  new Promise((resolve, reject) => {
    const probe = createServer()
    probe.once('error', reject)
    probe.listen(0, '127.0.0.1', () => {
      const { port } = probe.address() as AddressInfo
      probe.close(() => resolve(port))
    })
  })
