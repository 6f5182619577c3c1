import { Command } from '@commander-js/extra-typings'
import { Session } from '../connection/session.ts'
import { CliError, exitCodes } from '../errors.ts'
import { dryRunOption, examples, yesOption } from '../options.ts'
import { cellText } from '../output/output.ts'
import { confirm } from '../output/prompt.ts'
import { count } from '../output/time.ts'
import { calledWebhook } from '../resources/cells.ts'
import { resolveId } from '../resources/ids.ts'
import { lookAtWebhook } from '../resources/webhook.ts'
import { sinceOption, untilOption, windowOf } from '../window.ts'

interface Recovery {
  queued: number
  resumeSince: string | null
}

const RECOVER = `mutation ($webhookId: UUID!, $since: DateTime!, $until: DateTime) {
  recovery: recoverDeliveries(webhookId: $webhookId, since: $since, until: $until) { queued resumeSince }
}`
const COUNT = `mutation ($webhookId: UUID!, $since: DateTime!, $until: DateTime) {
  recovery: recoverDeliveries(webhookId: $webhookId, since: $since, until: $until, dryRun: true) { queued resumeSince }
}`

export const recoverCommand = () =>
  new Command('recover')
    .summary('send again what a webhook has not acknowledged')
    .description(
      'Queues every event since a time that the webhook should have received and has not acknowledged, ' +
        'whatever the reason: dropped, rejected, cancelled, or never queued because the webhook was not ' +
        'active. Pending deliveries stay as they are. It is safe to repeat.',
    )
    .argument('<id>', 'the webhook’s id')
    .addOption(sinceOption('only what happened').makeOptionMandatory())
    .addOption(untilOption('only what happened'))
    .addOption(yesOption())
    .addOption(dryRunOption())
    .addHelpText(
      'after',
      examples(
        ['After an outage of two hours, once the endpoint is well', 'tidings webhooks recover ID --since 2h'],
        [
          'Exactly one day, in a script',
          'tidings webhooks recover ID --since 2026-11-20 --until 2026-11-21 --yes --output json',
        ],
      ),
    )
    .action(async (given, options, command) => {
      const session = new Session(command)
      const id = await resolveId(session, 'webhooks', given)
      const { output } = session
      const { since = '', until } = windowOf(output, options)
      const variables = { webhookId: id, since, ...(until !== undefined && { until }) }
      if (session.dryRun) {
        await tellCount(session, variables)
        return void (await session.graphql(RECOVER, variables))
      }
      const webhook = await lookAtWebhook(session, id)
      if (webhook && webhook.status !== 'active') throw notActive(id, webhook.status, toTheSecond(since))
      const shown = calledWebhook(webhook, id)
      const span = `since ${toTheSecond(since)}${until === undefined ? '' : ` until ${toTheSecond(until)}`}`
      await confirm(`Send ${shown} again what it has not acknowledged ${span}?`, session)
      output.message(`Looking for what ${shown} has not acknowledged ${span}.`)
      const queued = await recover(session, variables)
      output.one({ id, url: webhook?.url ?? null, since, until: until ?? null, queued }, () =>
        queued === 0
          ? 'Nothing to send: each event is acknowledged or pending.\n'
          : `Queued ${count(queued, 'delivery', 'deliveries')}.\n`,
      )
      if (queued > 0) output.message(`See them arrive with: tidings deliveries watch --webhook ${id}`)
    })

interface Span {
  webhookId: string
  since: string
  until?: string
}

/** How many a dry run would send. The request can be shown without a server, too. */
const tellCount = async (session: Session, variables: Span): Promise<void> => {
  let found = 0
  try {
    for (let since: string | null = variables.since; since !== null; ) {
      const { recovery }: { recovery: Recovery } = await session.ask(COUNT, { ...variables, since })
      found += recovery.queued
      since = recovery.resumeSince
    }
  } catch (error) {
    if (!(error instanceof CliError) || error.exitCode !== exitCodes.unreachable) throw error
    return session.output.warning(`How many there are is not known: ${error.message}`)
  }
  session.output.message(`It would send ${count(found, 'event')} again.`)
}

/** Repeats the request until nothing is left; the server limits each request, and returns where to continue. */
const recover = async (session: Session, variables: Span): Promise<number> => {
  let queued = 0
  for (let since = variables.since; ; ) {
    try {
      const { recovery } = await session.graphql<{ recovery: Recovery }>(RECOVER, { ...variables, since })
      queued += recovery.queued
      if (recovery.resumeSince === null) return queued
      since = recovery.resumeSince
      session.output.message(`Queued ${count(queued, 'delivery', 'deliveries')} so far; going on from ${since}.`)
    } catch (error) {
      if (queued > 0) {
        const until = variables.until === undefined ? '' : ` --until ${variables.until}`
        session.output.message(
          `${count(queued, 'delivery is', 'deliveries are')} queued. Go on with: tidings webhooks recover ` +
            `${variables.webhookId} --since ${since}${until}`,
        )
      }
      throw error
    }
  }
}

const toTheSecond = (iso: string): string => iso.replace(/\.\d+\+00:00$/, 'Z')

const notActive = (id: string, status: string, since: string): CliError =>
  new CliError(
    exitCodes.failed,
    'CONFLICT',
    `The webhook is ${cellText(status)}: nothing can be queued for it.`,
    `Make it active first, which sends a ping: tidings webhooks enable ${id}. Then: tidings webhooks recover ${id} ` +
      `--since ${cellText(since)}`,
  )
