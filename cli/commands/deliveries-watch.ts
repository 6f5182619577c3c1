import { setTimeout as delay } from 'node:timers/promises'
import { Command, Option } from '@commander-js/extra-typings'
import { DeliveryWatch } from '../delivery-watch.ts'
import { CliError, exitCodes } from '../errors.ts'
import { collect, examples } from '../options.ts'
import { safeJson } from '../output/neutralise.ts'
import { type Colours, cellText, type Output } from '../output/output.ts'
import { cut } from '../output/table.ts'
import { timeOfDay, zoneAt, zoneName } from '../output/time.ts'
import { Session } from '../session.ts'
import { type DeliveryAtAGlance, deliveryStatuses, describeState, knownStatuses, statusMark } from '../timeline.ts'
import { eventTypes } from '../webhook.ts'

const INTERVAL_MS = 1000

export const watchCommand = () =>
  new Command('watch')
    .summary('see deliveries as they happen')
    .description(
      'Prints a line when a delivery is queued, attempted, or comes to an end, as it happens; a JSON object a line where nobody watches. Ctrl-C ends it. A server that is away is waited for.',
    )
    .option('--webhook <id>', 'only to this webhook')
    .addOption(new Option('--event-type <type>', 'only of this type').choices(eventTypes))
    .option('--status <statuses>', `only when in one of these: ${deliveryStatuses.join(', ')}`, collect)
    .addHelpText(
      'after',
      examples(
        ['Everything', 'tidings deliveries watch'],
        ['What goes wrong', 'tidings deliveries watch --status rejected,dropped'],
        [
          'In a script',
          `tidings deliveries watch --webhook ID --output ndjson | jq -r 'select(.status == "dropped").id'`,
        ],
      ),
    )
    .action(async (options, command) => {
      const session = new Session(command)
      const { output } = session
      const statuses = knownStatuses(options.status)
      const watch = new DeliveryWatch((document, variables) => session.graphql(document, variables), {
        ...(options.webhook && { webhookId: options.webhook }),
        ...(options.eventType && { eventType: options.eventType }),
      })
      const ending = new AbortController()
      for (const signal of SIGNALS) process.once(signal, () => ending.abort())
      await watch.begin()
      output.message(`Watching; times are ${zoneName(zoneAt(Date.now()))}, as on this machine. Ctrl-C ends it.`)
      let away = false
      while (!ending.signal.aborted) {
        try {
          for (const delivery of await watch.changes()) {
            if (statuses === undefined || statuses.includes(delivery.status)) print(output, delivery)
          }
          if (away) output.message('The server is back.')
          away = false
        } catch (error) {
          if (!(error instanceof CliError) || error.exitCode !== exitCodes.unreachable) throw error
          if (!away) output.warning(`${error.message} Still trying; nothing is missed meanwhile.`)
          away = true
        }
        await delay(INTERVAL_MS, undefined, { signal: ending.signal }).catch(() => {})
      }
    })

const SIGNALS = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const

/** A stream has no end to wait for: JSON is an object a line here, whatever the form of JSON. */
const print = (output: Output, delivery: DeliveryAtAGlance): void => {
  if (output.form === 'table') output.data(`${describe(delivery, output.colours)}\n`)
  else if (output.form === 'id') output.data(`${cellText(delivery.id)}\n`)
  else output.data(`${safeJson(delivery)}\n`)
}

/** One line, cut to the terminal: first what is needed to go on from here, then whatever fits. */
const describe = (delivery: DeliveryAtAGlance, colours: Colours): string => {
  const now = Date.now()
  const time = timeOfDay(now)
  const text = `${describeState(delivery, now)}  ${cellText(delivery.eventType)}  ${cellText(delivery.webhook?.url ?? delivery.webhookId)}`
  const { columns } = process.stdout
  const room = process.stdout.isTTY && columns ? columns - time.length - delivery.id.length - 7 : text.length
  return `${colours.dim(time)}  ${statusMark(delivery, colours)}  ${cellText(delivery.id)}  ${cut(text, Math.max(room, 10))}`
}
