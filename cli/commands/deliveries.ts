import { Command } from '@commander-js/extra-typings'
import { Session } from '../connection/session.ts'
import { CliError, exitCodes } from '../errors.ts'
import { dryRunOption, examples } from '../options.ts'
import { cellText, type View } from '../output/output.ts'
import { relativeIso } from '../output/time.ts'
import { calledWebhook, idColumn, statusCell, timeColumn } from '../resources/cells.ts'
import { deliveryConditions, formerTypeOption, statusesOption, typeOption } from '../resources/delivery-filters.ts'
import { resolveId } from '../resources/ids.ts'
import { list, listCommand } from '../resources/listing.ts'
import { type Delivery, deliveryFields, describeDelivery } from '../resources/timeline.ts'
import { sinceOption, untilOption } from '../window.ts'
import { exportCommand } from './deliveries-export.ts'
import { answerCommand, takeCommand } from './deliveries-pull.ts'
import { redeliverCommand } from './deliveries-redeliver.ts'
import { watchCommand } from './deliveries-watch.ts'

type ListedDelivery = Pick<
  Delivery,
  'id' | 'webhookId' | 'eventType' | 'status' | 'attemptCount' | 'nextAttemptAt' | 'createdAt' | 'finishedAt'
> & {
  webhook: { url: string; name: string | null } | null
}

export const deliveriesCommand = () =>
  new Command('deliveries')
    .description('A delivery is one event to one webhook: what was sent, what was answered, and what happens next.')
    .addCommand(listDeliveriesCommand())
    .addCommand(showCommand())
    .addCommand(redeliverCommand())
    .addCommand(watchCommand())
    .addCommand(exportCommand())
    .addCommand(takeCommand())
    .addCommand(answerCommand())
    .addHelpText(
      'after',
      examples(
        ['What was sent lately?', 'tidings deliveries list'],
        ['Why did this delivery not arrive?', 'tidings deliveries show ID'],
        ['See them as they happen', 'tidings deliveries watch'],
      ),
    )

const listDeliveriesCommand = () =>
  listCommand()
    .summary('list deliveries')
    .description('Lists deliveries, newest first.')
    .option('--webhook <id>', 'only to this webhook')
    .addOption(statusesOption())
    .addOption(typeOption())
    .addOption(formerTypeOption())
    .option('--organisation <id>', 'only of events of this organisation')
    .option('--project <id>', 'only of events of this project')
    .addOption(sinceOption('only those created'))
    .addOption(untilOption('only those created'))
    .addHelpText(
      'after',
      examples(
        ['Those that did not arrive', 'tidings deliveries list --status rejected,dropped'],
        [
          'Of one customer, yesterday morning',
          'tidings deliveries list --organisation ID --since "yesterday 8:00" --until "yesterday 12:00"',
        ],
        ['What happened to one webhook in the last two hours', 'tidings deliveries list --webhook ID --since 2h'],
        [
          'How many since nine, by status and webhook',
          'tidings deliveries list --since 9h --count --by status,webhook',
        ],
        ['About one project report', `tidings deliveries list --selector '{"event.payload.projectReport.id":"ID"}'`],
        [
          'The story of each that failed',
          'tidings deliveries list --status dropped --output id | xargs -r -n 1 tidings deliveries show',
        ],
      ),
    )
    .action(async (options, command) => {
      const session = new Session(command)
      const conditions = await deliveryConditions(session, options)
      await list<ListedDelivery>(session, options, {
        resource: 'deliveries',
        noun: ['delivery', 'deliveries'],
        fields: 'id webhookId webhook { url name } eventType status attemptCount nextAttemptAt createdAt finishedAt',
        view: view(session.output.nowMs),
        conditions,
        sort: [{ createdAt: 'desc' }],
      })
    })

const showCommand = () =>
  new Command('show')
    .summary('show one delivery’s story')
    .description(
      'Shows a delivery’s story: each attempt, its answer, the waits between, and what happens next and when.',
    )
    .argument('<id>', 'the delivery’s id, which its receiver sees as eventId and jti')
    .option('--full', 'with the headers of each attempt and every answer as far as it is kept')
    .addOption(dryRunOption())
    .addHelpText(
      'after',
      examples(
        ['Why did it not arrive?', 'tidings deliveries show ID'],
        ['With the headers that were sent and answered', 'tidings deliveries show ID --full'],
        ['Its attempts, for a script', `tidings deliveries show ID --output json | jq '.attempts[].statusCode'`],
      ),
    )
    .action(async (given, { full = false }, command) => {
      const session = new Session(command)
      const id = await resolveId(session, 'deliveries', given)
      const { deliveries } = await session.graphql<{ deliveries: Delivery[] }>(
        `query ($query: MangoQuery) { deliveries(query: $query) { ${deliveryFields} } }`,
        { query: { selector: { id } } },
      )
      const [delivery] = deliveries
      if (!delivery) {
        throw new CliError(
          exitCodes.notFound,
          'NOT_FOUND',
          `No delivery with id ${cellText(id)} is visible to this access token.`,
          'Give the eventId that the receiver saw. List the visible ones with: tidings deliveries list',
        )
      }
      const heldBy = session.output.forPeople ? await findHolder(session, delivery) : undefined
      const shown = { ...delivery, heldBy }
      session.output.one(delivery, colours => describeDelivery(shown, session.output.nowMs, colours, { full }))
    })

/** How many pending deliveries of a webhook, oldest first, are searched for the one whose 429 holds the others. */
const LOOKED_AT = 50

/** The delivery whose 429 holds this one, if it can be found. */
const findHolder = async (
  session: Session,
  { id, webhookId, status, nextAttemptAt }: Delivery,
): Promise<Delivery['heldBy']> => {
  if (status !== 'pending' || nextAttemptAt === null || Date.parse(nextAttemptAt) < session.output.nowMs) return
  const { deliveries } = await session.graphql<{ deliveries: Pick<Delivery, 'id' | 'attempts'>[] }>(
    `query ($query: MangoQuery) { deliveries(query: $query) {
      id attempts(query: { sort: [{ number: "desc" }], limit: 1 }) { statusCode retryAfter } } }`,
    {
      query: {
        selector: { webhookId, status: 'pending', attemptCount: { $gt: 0 } },
        sort: [{ id: 'asc' }],
        limit: LOOKED_AT,
      },
    },
  )
  const held = deliveries.flatMap(({ id: other, attempts: [last] }) =>
    other !== id && last?.statusCode === 429 && last.retryAfter !== null ? [{ id: other, until: last.retryAfter }] : [],
  )
  return held.toSorted((a, b) => (a.until < b.until ? 1 : -1))[0]
}

const view = (nowMs: number): View<ListedDelivery> => ({
  columns: [
    idColumn,
    { title: 'STATUS', cell: (row, colours) => statusCell(row.status, colours) },
    // Event types differ at their ends.
    { title: 'EVENT', shrinks: 'start', optional: true, cell: row => cellText(row.eventType) },
    { title: 'WEBHOOK', shrinks: 'url', cell: row => calledWebhook(row.webhook, row.webhookId) },
    {
      title: 'NEXT',
      cell: row =>
        row.status === 'pending' && row.nextAttemptAt === null
          ? 'in turn'
          : cellText(row.nextAttemptAt && relativeIso(row.nextAttemptAt, nowMs)),
    },
    { title: 'TRIES', align: 'right', cell: row => String(row.attemptCount) },
    { ...timeColumn<ListedDelivery>('CREATED', row => row.createdAt, nowMs), optional: true },
  ],
  empty: 'No deliveries. Each event creates one for each webhook that wants it; try: tidings webhooks ping ID',
})
