import { Command } from '@commander-js/extra-typings'
import { Session } from '../connection/session.ts'
import { examples, parseSelector } from '../options.ts'
import { safeJson } from '../output/neutralise.ts'
import { type Colours, cellText, type Output } from '../output/output.ts'
import { cut } from '../output/table.ts'
import { timeOfDay, zoneAt, zoneName } from '../output/time.ts'
import { calledWebhook } from '../resources/cells.ts'
import { deliveryConditions, formerTypeOption, statusesOption, typeOption } from '../resources/delivery-filters.ts'
import { allOf } from '../resources/mango-query.ts'
import {
  type DeliveryAtAGlance,
  describeState,
  glanceFields,
  knownStatuses,
  statusMark,
} from '../resources/timeline.ts'

export const watchCommand = () =>
  new Command('watch')
    .alias('tail')
    .summary('see deliveries as they happen')
    .description(
      'Prints a line whenever a delivery is queued, attempted or finished; ' +
        'without a terminal, one JSON object a line. Ctrl-C ends it. It waits for a server that is unreachable.',
    )
    .option('--webhook <id>', 'only to this webhook')
    .addOption(statusesOption('only changes to one of these statuses'))
    .addOption(typeOption())
    .addOption(formerTypeOption())
    .option('--organisation <id>', 'only of events of this organisation')
    .option('--project <id>', 'only of events of this project')
    .option('--selector <json>', 'only what this Mango selector matches')
    .addHelpText(
      'after',
      examples(
        ['Everything', 'tidings deliveries watch'],
        ['What goes wrong', 'tidings deliveries watch --status rejected,dropped'],
        ['Of one customer', 'tidings deliveries watch --organisation ID'],
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
      // A change is known by its status, which the selector would have to meet at the time of the look.
      const { status: _, ...filters } = options
      const conditions = await deliveryConditions(session, filters)
      const selector = allOf([...conditions, ...(options.selector ? [parseSelector(options.selector)] : [])]) ?? {}
      const ending = new AbortController()
      for (const signal of SIGNALS) process.once(signal, () => ending.abort())
      const begun = () =>
        output.message(`Watching; times are ${zoneName(zoneAt(Date.now()))}, as on this machine. Ctrl-C ends it.`)
      const results = session.follow<{ deliveries: DeliveryAtAGlance }>(DELIVERIES, { selector }, ending.signal, begun)
      const shown = new LastShown()
      for await (const { deliveries: delivery } of results) {
        const isWanted = statuses === undefined || statuses.includes(delivery.status)
        if (shown.isNew(delivery) && isWanted) print(output, delivery)
      }
    })

const DELIVERIES = `subscription ($selector: MangoSelector) {
  deliveries(selector: $selector) { ${glanceFields} } }`

const MOST_REMEMBERED = 10_000

/** The last shown states: a stream that goes on after a break may begin with some of them. */
class LastShown {
  readonly #byId = new Map<string, string>()

  isNew({ id, status, attemptCount }: DeliveryAtAGlance): boolean {
    const state = `${status} ${attemptCount}`
    const isNew = this.#byId.get(id) !== state
    this.#byId.delete(id)
    this.#byId.set(id, state)
    if (this.#byId.size > MOST_REMEMBERED) this.#byId.delete(this.#byId.keys().next().value!)
    return isNew
  }
}

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
