import { Command } from '@commander-js/extra-typings'
import { Session } from '../connection/session.ts'
import { CliError, exitCodes, usageError } from '../errors.ts'
import { dryRunOption, examples, parseSelector, wholeNumber, yesOption } from '../options.ts'
import { cellText } from '../output/output.ts'
import { confirm } from '../output/prompt.ts'
import { count } from '../output/time.ts'
import { calledWebhook } from '../resources/cells.ts'
import {
  type DeliveryFilters,
  deliveryConditions,
  formerTypeOption,
  statusesOption,
  typeOption,
} from '../resources/delivery-filters.ts'
import { idToChange, resolveId } from '../resources/ids.ts'
import { allOf, type MangoQuery } from '../resources/mango-query.ts'
import { dryRunOfMany, forEach, givenIds } from '../resources/many.ts'
import { type Delivery, deliveryFields, describeDelivery } from '../resources/timeline.ts'
import { lookAtWebhook } from '../resources/webhook.ts'
import { sinceOption, untilOption } from '../window.ts'

interface Recovery {
  queued: number
  resumeAfter: string | null
}

const REDELIVER_MANY = `mutation ($webhookId: UUID!, $query: MangoQuery!, $dryRun: Boolean) {
  recovery: redeliverMany(webhookId: $webhookId, query: $query, dryRun: $dryRun) { queued resumeAfter }
}`

const redeliverUsage = () =>
  new Command('redeliver')
    .summary('send the events of deliveries again')
    .description(
      'Sends the event of a delivery to its webhook again: a new delivery of the same event, ' +
        'whose receiver sees a new eventId. With --webhook it sends every matching delivery of one webhook again, ' +
        'each event once, acknowledged ones too. They come after new deliveries. The webhook must be active.',
    )
    .argument('[ids...]', 'ids of deliveries; - reads them from standard input, one a line')
    .option('--webhook <id>', 'the deliveries of this webhook that match the other options')
    .option('--selector <json>', 'with --webhook: only what this Mango selector matches')
    .addOption(statusesOption('with --webhook: only those in one of these statuses'))
    .addOption(typeOption('with --webhook: only of this type'))
    .addOption(formerTypeOption())
    .option('--organisation <id>', 'with --webhook: only of events of this organisation')
    .option('--project <id>', 'with --webhook: only of events of this project')
    .addOption(sinceOption('with --webhook: only those created'))
    .addOption(untilOption('with --webhook: only those created'))
    .option('--limit <number>', 'with --webhook: at most this many', wholeNumber)
    .addOption(yesOption())
    .addOption(dryRunOption())
    .addHelpText(
      'after',
      examples(
        ['When the receiver works again', 'tidings deliveries redeliver ID'],
        [
          'What a receiver acknowledged and then lost',
          'tidings deliveries redeliver --webhook ID --status delivered --since 2026-11-20 --until 2026-11-21',
        ],
        [
          'Of one quarter, in a script',
          'tidings deliveries redeliver --webhook ID --yes --selector ' +
            `'{"event.payload.projectReport.quarter":"2026-3"}'`,
        ],
        [
          'Everything that any receiver refused today',
          'tidings deliveries list --status rejected --since 1d --all --output id | tidings deliveries redeliver -',
        ],
      ),
    )

export const redeliverCommand = () =>
  redeliverUsage().action(async (given, options, command) => {
    const session = new Session(command)
    const { webhook, yes: _yes, dryRun: _dryRun, ...filters } = options
    const isFiltered = Object.values(filters).some(each => each !== undefined)
    if (webhook !== undefined) {
      if (given.length > 0)
        throw usageError('Ids and --webhook are both given.', 'Give the ids, or say which with options.')
      return redeliverMatching(session, webhook, await queryOf(session, filters))
    }
    if (isFiltered) throw usageError('The webhook is missing.', 'Name the webhook with --webhook.')
    if (given.length === 0) throw usageError('No delivery is given.', 'Give ids, or name a webhook with --webhook.')
    return redeliverGiven(session, given)
  })

const redeliverGiven = async (session: Session, given: string[]): Promise<void> => {
  const ids = givenIds(given)
  const redeliver = async (one: string): Promise<Delivery> => {
    const { delivery } = await session.graphql<{ delivery: Delivery }>(
      `mutation ($id: UUID!) { delivery: redeliver(deliveryId: $id) { ${deliveryFields} } }`,
      { id: await idToChange(session, 'deliveries', one) },
    )
    return delivery
  }
  const isOne = ids.length === 1 && !given.includes('-')
  if (session.dryRun) return dryRunOfMany(session, ids, ['delivery', 'deliveries'], redeliver)
  if (!isOne) {
    return forEach(session, ids, ['delivery', 'deliveries'], async one => ({
      id: (await redeliver(one)).id,
      outcome: 'queued again',
    }))
  }
  const delivery = await redeliver(ids[0]!)
  session.output.one(delivery, colours => describeDelivery(delivery, session.output.nowMs, colours))
  session.output.message(`Queued. See the result with: tidings deliveries show ${cellText(delivery.id)}`)
}

interface Filters extends DeliveryFilters {
  selector?: string | undefined
  limit?: number | undefined
}

const queryOf = async (session: Session, { selector, limit, ...filters }: Filters): Promise<MangoQuery> => {
  const conditions = allOf([
    ...(await deliveryConditions(session, filters)),
    ...(selector ? [parseSelector(selector)] : []),
  ])
  return { ...(conditions && { selector: conditions }), ...(limit !== undefined && { limit }) }
}

/** Counts first, and asks for confirmation. */
const redeliverMatching = async (session: Session, named: string, query: MangoQuery): Promise<void> => {
  const { output } = session
  const webhookId = await resolveId(session, 'webhooks', named)
  if (session.dryRun) {
    await tellCount(session, webhookId, query)
    return void (await session.graphql(REDELIVER_MANY, { webhookId, query }))
  }
  const shown = calledWebhook(await lookAtWebhook(session, webhookId), webhookId)
  const found = await walk(session, { webhookId, query, dryRun: true })
  if (found > 0) {
    await confirm(`Send ${count(found, 'event')} to ${shown} again?`, session)
    output.message(`Queueing ${count(found, 'event')} for ${shown}.`)
  }
  const queued = found === 0 ? 0 : await walk(session, { webhookId, query })
  output.one({ id: webhookId, queued }, () =>
    queued === 0 ? 'Nothing to send: no delivery matches.\n' : `Queued ${count(queued, 'delivery', 'deliveries')}.\n`,
  )
  if (queued > 0) output.message(`See them arrive with: tidings deliveries watch --webhook ${cellText(webhookId)}`)
}

/** How many a dry run would send. The request can be shown without a server, too. */
const tellCount = async (session: Session, webhookId: string, query: MangoQuery): Promise<void> => {
  const found = await walk(session, { webhookId, query, dryRun: true }).catch(error => {
    if (!(error instanceof CliError) || error.exitCode !== exitCodes.unreachable) throw error
    session.output.warning(`How many there are is not known: ${error.message}`)
  })
  if (found !== undefined) session.output.message(`It would send ${count(found, 'event')} again.`)
}

/** Repeats the request until nothing is left; the server limits each request, and returns where to continue. */
const walk = async (
  session: Session,
  { query, ...asked }: { webhookId: string; query: MangoQuery; dryRun?: boolean },
): Promise<number> => {
  let queued = 0
  for (let after: string | undefined; ; ) {
    const left = query.limit === undefined ? {} : { limit: query.limit - queued }
    try {
      // A count changes nothing.
      const send = asked.dryRun ? session.ask.bind(session) : session.graphql.bind(session)
      const { recovery } = await send<{ recovery: Recovery }>(REDELIVER_MANY, {
        ...asked,
        query: { ...query, ...left, ...(after !== undefined && { after }) },
      })
      queued += recovery.queued
      if (recovery.resumeAfter === null) return queued
      after = recovery.resumeAfter
      const done = asked.dryRun ? 'Counted' : 'Queued'
      session.output.message(`${done} ${count(queued, 'delivery', 'deliveries')} so far …`)
    } catch (error) {
      if (queued > 0 && !asked.dryRun) {
        session.output.message(
          `${count(queued, 'delivery is', 'deliveries are')} queued, from deliveries up to ${cellText(after)}. ` +
            `After they are sent, --selector '{"id":{"$gt":"${cellText(after)}"}}' leaves them out.`,
        )
      }
      throw error
    }
  }
}
