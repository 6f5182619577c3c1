import { Command } from '@commander-js/extra-typings'
import type { DeliveryStatus } from '../../shared/vocabulary.ts'
import { Session } from '../connection/session.ts'
import { CliError, exitCodes } from '../errors.ts'
import { dryRunOption, examples } from '../options.ts'
import { type Colours, cellText, describeFields, type View } from '../output/output.ts'
import { renderTable } from '../output/table.ts'
import { relativeIso } from '../output/time.ts'
import { calledWebhook, idColumn, statusCell, timeColumn } from '../resources/cells.ts'
import { typeOption } from '../resources/delivery-filters.ts'
import { resolveId } from '../resources/ids.ts'
import { list, listCommand } from '../resources/listing.ts'
import { conditionsOf, sinceOption, untilOption, windowOf } from '../window.ts'

interface Event {
  id: string
  type: string
  organisationId: string | null
  organisation: { name: string } | null
  projectId: string | null
  project: { name: string } | null
  payload: unknown
  time: string
  /** Whether it is an example, sent on demand. */
  example: boolean
}

interface EventDelivery {
  id: string
  webhookId: string
  webhook: { url: string; name: string | null } | null
  status: DeliveryStatus
  attemptCount: number
  finishedAt: string | null
}

/** The GraphQL selection of an event. */
export const eventFields =
  'id type organisationId organisation { name } projectId project { name } payload time example'

export const eventsCommand = () =>
  new Command('events')
    .description('What happened, whether or not a webhook received it. Events are kept for 30 days or as configured.')
    .addCommand(listEventsCommand())
    .addCommand(showCommand())
    .addHelpText(
      'after',
      examples(
        ['What has happened lately?', 'tidings events list --since 1d'],
        ['Where did it go?', 'tidings events show ID'],
      ),
    )

const listEventsCommand = () =>
  listCommand()
    .summary('list events')
    .description('Lists events, newest first.')
    .addOption(typeOption())
    .option('--organisation <id>', 'only of this organisation')
    .option('--project <id>', 'only of this project')
    .addOption(sinceOption('only those'))
    .addOption(untilOption('only those'))
    .addHelpText(
      'after',
      examples(
        ['What a customer should have heard of today', 'tidings events list --organisation ID --since 1d'],
        ['Of one quarter', `tidings events list --selector '{"payload.projectReport.quarter":"2026-3"}'`],
        ['With their payloads, for a script', `tidings events list --output json | jq '.[].payload'`],
      ),
    )
    .action(async (options, command) => {
      const session = new Session(command)
      const { nowMs } = session.output
      const { type } = options
      const span = windowOf(session.output, options)
      const organisation = await resolveId(session, 'organisations', options.organisation)
      const project = await resolveId(session, 'projects', options.project)
      await list<Event>(session, options, {
        resource: 'events',
        noun: ['event', 'events'],
        fields: eventFields,
        view: view(nowMs),
        conditions: [
          ...(type ? [{ type }] : []),
          ...(organisation ? [{ organisationId: organisation }] : []),
          ...(project ? [{ projectId: project }] : []),
          ...conditionsOf(span, 'time'),
        ],
        sort: [{ time: 'desc' }],
      })
    })

const showCommand = () =>
  new Command('show')
    .summary('show one event, its payload, and the webhooks it was sent to')
    .argument('<id>', 'the event’s id; the eventId that a receiver sees is a delivery’s id')
    .addOption(dryRunOption())
    .addHelpText('after', examples(['Where did it go, and what became of it?', 'tidings events show ID']))
    .action(async (given, _options, command) => {
      const session = new Session(command)
      const id = await resolveId(session, 'events', given)
      const { output } = session
      const { events } = await session.graphql<{ events: EventWithDeliveries[] }>(
        `query ($query: MangoQuery) { events(query: $query) { ${eventFields} deliveries { id webhookId webhook ` +
          '{ url name } status attemptCount finishedAt } } }',
        { query: { selector: { id } } },
      )
      const [event] = events
      if (!event) {
        throw new CliError(
          exitCodes.notFound,
          'NOT_FOUND',
          `No event with id ${cellText(id)} is visible to this access token.`,
          'List the visible ones with: tidings events list. If it is an eventId that a receiver saw: ' +
            `tidings deliveries show ${cellText(id)}`,
        )
      }
      output.one(event, colours => describeEvent(event, colours, output.nowMs))
      output.message(
        event.deliveries.length === 0
          ? 'No webhook that this access token sees wanted it. See the filters of each with: ' + 'tidings webhooks list'
          : 'The story of one of these: tidings deliveries show ID',
      )
    })

type EventWithDeliveries = Event & { deliveries: EventDelivery[] }

const describeEvent = (event: EventWithDeliveries, colours: Colours, nowMs: number): string => {
  const head = describeFields(
    [
      ['ID', cellText(event.id)],
      ['Type', typeCell(event, colours)],
      ['Time', `${cellText(event.time)}  ${colours.dim(relativeIso(event.time, nowMs))}`],
      ['Organisation', named(event.organisation, event.organisationId)],
      ['Project', named(event.project, event.projectId)],
      ['Payload', cellText(event.payload)],
    ],
    colours,
  )
  if (event.deliveries.length === 0) return head
  const rows = event.deliveries.map(each => [
    cellText(each.id),
    statusCell(each.status, colours),
    String(each.attemptCount),
    calledWebhook(each.webhook, each.webhookId),
  ])
  const width = process.stdout.isTTY ? process.stdout.columns : undefined
  return `${head}\n${renderTable(SENT_COLUMNS, rows, { width, title: colours.bold })}`
}

const SENT_COLUMNS = [
  { title: 'DELIVERY', isId: true as const },
  { title: 'STATUS' },
  { title: 'TRIES', align: 'right' as const },
  { title: 'WEBHOOK', shrinks: 'url' as const },
]

const typeCell = ({ type, example }: Event, colours: Colours): string =>
  example ? `${colours.dim('example of ')}${cellText(type)}` : cellText(type)

const named = (found: { name: string } | null, id: string | null): string =>
  found && id ? `${cellText(found.name)}  ${cellText(id)}` : cellText(id)

const view = (nowMs: number): View<Event> => ({
  columns: [
    idColumn,
    { title: 'TYPE', shrinks: 'start', cell: typeCell },
    { title: 'PROJECT', shrinks: 'end', optional: true, cell: row => cellText(row.project?.name) },
    { title: 'ORGANISATION', shrinks: 'end', optional: true, cell: row => cellText(row.organisation?.name) },
    timeColumn('TIME', row => row.time, nowMs),
  ],
  empty: 'No events. Submitting a report makes one: tidings reports submit --help',
})
