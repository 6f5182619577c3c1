import { setTimeout as delay } from 'node:timers/promises'
import { Command, Option } from '@commander-js/extra-typings'
import { deliveryStatuses, eventTypes } from '../../shared/vocabulary.ts'
import type { Ask } from '../connection/client.ts'
import type { LiveStream } from '../connection/live.ts'
import { Session } from '../connection/session.ts'
import { CliError, exitCodes } from '../errors.ts'
import { collect, examples } from '../options.ts'
import { safeJson } from '../output/neutralise.ts'
import { type Colours, cellText, type Output } from '../output/output.ts'
import { cut } from '../output/table.ts'
import { duration, timeOfDay, zoneAt, zoneName } from '../output/time.ts'
import { calledWebhook } from '../resources/cells.ts'
import { DeliveryWatch, LIVE_DELIVERIES } from '../resources/delivery-watch.ts'
import { existingId } from '../resources/ids.ts'
import { type DeliveryAtAGlance, describeState, knownStatuses, statusMark } from '../resources/timeline.ts'

const INTERVAL_MS = 1000
/** The limit applies to a minute, part of which may be over. */
const LIMITED_WAIT_MS = 15_000
const LONGEST_REST_MS = 15_000

export const watchCommand = () =>
  new Command('watch')
    .summary('see deliveries as they happen')
    .description(
      'Prints a line whenever a delivery is queued, attempted or finished; ' +
        'without a terminal, one JSON object a line. Ctrl-C ends it. It waits for a server that is unreachable.',
    )
    .option('--webhook <id>', 'only to this webhook')
    .addOption(new Option('--event-type <type>', 'only of this type').choices(eventTypes))
    .option('--status <statuses>', `only changes to one of these statuses: ${deliveryStatuses.join(', ')}`, collect)
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
      const webhookId = await existingId(session, 'webhooks', options.webhook)
      let hasBegun = false
      const ask: Ask = (document, variables) =>
        hasBegun ? session.look(document, variables) : session.graphql(document, variables)
      const selector = { ...(webhookId && { webhookId }), ...(options.eventType && { eventType: options.eventType }) }
      const watch = new DeliveryWatch(ask, selector)
      const tell = (delivery: DeliveryAtAGlance): void => {
        if (statuses === undefined || statuses.includes(delivery.status)) print(output, delivery)
      }
      const ending = new AbortController()
      for (const signal of SIGNALS) process.once(signal, () => ending.abort())
      await watch.begin()
      hasBegun = true
      output.message(`Watching; times are ${zoneName(zoneAt(Date.now()))}, as on this machine. Ctrl-C ends it.`)
      let away = false
      let slowdown = 1
      let isOffered = true
      while (!ending.signal.aborted) {
        const startedAt = performance.now()
        let restMs = 0
        // Subscribes before the first look, so that nothing is missed in between.
        const live: Told | 'not offered' | undefined = isOffered
          ? await session.live<{ deliveries: DeliveryAtAGlance }>(LIVE_DELIVERIES, { selector }, ending.signal)
          : 'not offered'
        isOffered = live !== 'not offered'
        try {
          for await (const batch of watch.changes()) {
            batch.forEach(tell)
            if (ending.signal.aborted) return
          }
          if (away) output.message('The server is back.')
          away = false
          if (live !== undefined && live !== 'not offered') {
            output.detail('The server reports deliveries as they change.')
            for await (const { deliveries } of live) if (watch.note(deliveries)) tell(deliveries)
            if (ending.signal.aborted) return
            output.detail('The server no longer reports deliveries by itself; polling instead.')
          }
        } catch (error) {
          if (!(error instanceof CliError)) throw error
          if (error.code === 'RATE_LIMITED') {
            slowdown *= 2
            restMs = LIMITED_WAIT_MS
            output.warning(
              `${error.message} From then on it polls every ${duration(slowdown * INTERVAL_MS)}; ` +
                'nothing is missed meanwhile.',
            )
          } else if (error.exitCode === exitCodes.unreachable) {
            if (!away) output.warning(`${error.message} Still trying; nothing is missed meanwhile.`)
            away = true
          } else throw error
        }
        // The pause is as long as the last look took, to spare a slow server.
        const tookMs = Math.min(LONGEST_REST_MS, performance.now() - startedAt)
        const waitMs = Math.max(slowdown * INTERVAL_MS, restMs, tookMs)
        await delay(waitMs, undefined, { signal: ending.signal }).catch(() => {})
      }
    })

type Told = LiveStream<{ deliveries: DeliveryAtAGlance }>

const SIGNALS = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const

/** A stream has no end, so both JSON forms print one object a line. */
const print = (output: Output, delivery: DeliveryAtAGlance): void => {
  if (output.form === 'table') output.data(`${describe(delivery, output.colours)}\n`)
  else if (output.form === 'id') output.data(`${cellText(delivery.id)}\n`)
  else output.data(`${safeJson(delivery)}\n`)
}

/** One line, cut to the terminal: first the id, then whatever fits. */
const describe = (delivery: DeliveryAtAGlance, colours: Colours): string => {
  const now = Date.now()
  const time = timeOfDay(now)
  const text =
    `${describeState(delivery, now)}  ${cellText(delivery.eventType)}  ` +
    `${calledWebhook(delivery.webhook, delivery.webhookId)}`
  const { columns } = process.stdout
  const room = process.stdout.isTTY && columns ? columns - time.length - delivery.id.length - 7 : text.length
  return (
    `${colours.dim(time)}  ${statusMark(delivery, colours)}  ${cellText(delivery.id)}  ` +
    `${cut(text, Math.max(room, 10))}`
  )
}
