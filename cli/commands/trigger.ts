import { Argument, Command } from '@commander-js/extra-typings'
import { eventTypes } from '../../shared/vocabulary.ts'
import { Session } from '../connection/session.ts'
import { CliError, exitCodes, usageError } from '../errors.ts'
import { dryRunOption, examples, gather, wholeNumber } from '../options.ts'
import { cellText } from '../output/output.ts'
import { count } from '../output/time.ts'
import { calledWebhook } from '../resources/cells.ts'
import { resolveId } from '../resources/ids.ts'
import { forEach } from '../resources/many.ts'
import { type Delivery, deliveryFields, describeDelivery } from '../resources/timeline.ts'

const SEND = `mutation ($webhookId: UUID!, $eventType: EventType!, $payload: JSON) {
  delivery: sendExample(webhookId: $webhookId, eventType: $eventType, payload: $payload) { ${deliveryFields} }
}`

const MOST = 1_000

export const triggerCommand = () =>
  new Command('trigger')
    .description(
      'Sends an example of any event type to a webhook, whatever its filters are: signed, delivered, retried ' +
        'and logged like a real event. The ids in its payload are the same in every example: a receiver can tell.',
    )
    .addArgument(new Argument('<type>', 'the type of event').choices(eventTypes))
    .option('--webhook <id>', 'the webhook; by default the only active one')
    .option('--set <path=value>', 'a value to change in the payload, such as projectReport.quarter=2026-3', gather)
    .option('--count <number>', 'so many of them', wholeNumber, 1)
    .addOption(dryRunOption())
    .addHelpText(
      'after',
      examples(
        ['Try “overdue” without being overdue', 'tidings trigger project_report_quarterly_overdue --webhook ID'],
        [
          'With another quarter',
          'tidings trigger project_report_quarterly_submitted --webhook ID --set projectReport.quarter=2026-1',
        ],
        ['Twenty of them', 'tidings trigger token_expired --webhook ID --count 20'],
      ),
    )
    .action(async (eventType, options, command) => {
      const session = new Session(command)
      const { count: times } = options
      if (times < 1 || times > MOST) throw usageError(`--count is ${times}.`, `Give a number from 1 to ${MOST}.`)
      const payload = payloadOf(options.set ?? [])
      const webhookId = await webhookFor(session, options.webhook)
      const send = async (): Promise<Delivery> => {
        const variables = { webhookId, eventType, ...(payload && { payload }) }
        return (await session.graphql<{ delivery: Delivery }>(SEND, variables)).delivery
      }
      if (session.dryRun && times > 1) session.output.message(`The request for each of ${count(times, 'example')}:`)
      if (times === 1 || session.dryRun) {
        const delivery = await send()
        session.output.one(delivery, colours => describeDelivery(delivery, session.output.nowMs, colours))
        session.output.message(`Queued. See the result with: tidings deliveries show ${cellText(delivery.id)}`)
        return
      }
      const each = Array.from({ length: times }, () => webhookId)
      await forEach(session, each, ['example', 'examples'], async () => ({ id: (await send()).id, outcome: 'queued' }))
      session.output.message(`See them arrive with: tidings deliveries watch --webhook ${cellText(webhookId)}`)
    })

/** The named webhook, or the only active one. Throws a CliError if there is none or several. */
const webhookFor = async (session: Session, named: string | undefined): Promise<string> => {
  if (named !== undefined) return resolveId(session, 'webhooks', named)
  const { webhooks } = await session.ask<{ webhooks: { id: string; url: string; name: string | null }[] }>(
    `{ webhooks(query: {selector: {status: "active"}, sort: [{createdAt: "desc"}], limit: 6}) { id url name } }`,
  )
  const [only, ...others] = webhooks
  if (!only) {
    throw new CliError(
      exitCodes.notFound,
      'NOT_FOUND',
      'No active webhook is visible to this access token.',
      'Register one with: tidings webhooks create URL. Or receive on this machine with: tidings listen --register',
    )
  }
  if (others.length === 0) return only.id
  const shown = webhooks.slice(0, 5).map(webhook => `${calledWebhook(webhook, webhook.id)} (${cellText(webhook.id)})`)
  const more = webhooks.length > 5 ? ' and others' : ''
  throw usageError(`Several webhooks are active: ${shown.join(', ')}${more}.`, 'Choose one with --webhook.')
}

type Payload = { [name: string]: unknown }

/** `projectReport.quarter=2026-3` as an object; a value that is not JSON is text. */
export const payloadOf = (given: string[]): Payload | undefined => {
  if (given.length === 0) return undefined
  const payload: Payload = Object.create(null)
  for (const text of given) {
    const [, path, value] = /^([^=]+)=(.*)$/s.exec(text) ?? []
    const names = path?.split('.') ?? []
    if (value === undefined || names.some(name => name === '')) {
      throw usageError(`${JSON.stringify(text)} sets nothing.`, 'Such as: --set projectReport.quarter=2026-3')
    }
    let at = payload
    for (const name of names.slice(0, -1)) {
      if (typeof at[name] !== 'object' || at[name] === null) at[name] = Object.create(null)
      at = at[name] as Payload
    }
    at[names.at(-1)!] = jsonOr(value)
  }
  return payload
}

const jsonOr = (text: string): unknown => {
  try {
    return JSON.parse(text)
  } catch {
    return text
  }
}
