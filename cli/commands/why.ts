import { Command } from '@commander-js/extra-typings'
import { isId } from '../../shared/ids.ts'
import { parseIso, toIso } from '../../shared/time.ts'
import { Session } from '../connection/session.ts'
import { CliError, exitCodes, usageError } from '../errors.ts'
import { dryRunOption, examples } from '../options.ts'
import { typeOption } from '../resources/delivery-filters.ts'
import { calledSo, type Resource, resolveId } from '../resources/ids.ts'
import { describeEventWhy, whyEvent } from '../why/event.ts'
import { describeOrganisationWhy, whyOrganisation } from '../why/organisation.ts'
import { describeWebhookWhy, whyWebhook } from '../why/webhook.ts'
import { sinceOption, untilOption, windowOf } from '../window.ts'

export const whyCommand = () =>
  new Command('why')
    .summary('find out why something did not arrive')
    .description(
      'Gives one verdict, its causes, the evidence, and the next command. For a webhook: how it is, and since when. ' +
        'For a webhook and an event: why the event did or did not go there, by the rules that the server uses. ' +
        'For an organisation: which events there were, and where each went.',
    )
    .argument('[webhook]', 'the webhook, or the organisation')
    .argument('[event]', 'the event, or a delivery of it (the eventId that its receiver saw)')
    .addOption(typeOption('for an organisation: only events of this type'))
    .option('--project <project>', 'for an organisation: only events of this project')
    .addOption(sinceOption('only what happened'))
    .addOption(untilOption('only what happened'))
    .addOption(dryRunOption())
    .addHelpText(
      'after',
      examples(
        ['What is wrong with this webhook?', 'tidings why ID'],
        ['Why did this event not go there?', 'tidings why ID EVENT'],
        [
          'A customer says that nothing came yesterday',
          'tidings why Acme --type project_report_quarterly_submitted --since yesterday --until today',
        ],
      ),
    )
    .action(async (named, event, { type, project, ...window }, command) => {
      const session = new Session(command)
      const { output } = session
      if (named === undefined) {
        throw usageError('It is not said why of what.', 'Name a webhook, a webhook and an event, or an organisation.')
      }
      if (event !== undefined) {
        if ((type ?? project) !== undefined || window.since !== undefined || window.until !== undefined) {
          throw usageError('An event and filters are both given.', 'Leave out --type, --project, --since and --until.')
        }
        const webhookId = await webhookNamed(session, named)
        const why = await whyEvent(session, { webhookId, eventId: await eventNamed(session, event) })
        return output.one(why, colours => describeEventWhy(why, output.nowMs, colours))
      }
      const span = windowOf(output, window)
      const organisationId = await organisationNamed(session, named, (type ?? project) !== undefined)
      if (organisationId !== undefined) {
        const projectId = await resolveId(session, 'projects', project)
        const why = await whyOrganisation(session, organisationId, { type, projectId, ...span })
        return output.one(why, colours => describeOrganisationWhy(why, output.nowMs, colours))
      }
      const why = await whyWebhook(session, await resolveId(session, 'webhooks', named), span)
      output.one(why, colours => describeWebhookWhy(why, output.nowMs, colours))
    })

/** A deleted webhook, which is in no list, is taken by its whole id. */
const webhookNamed = (session: Session, named: string): Promise<string> =>
  isId(named) ? Promise.resolve(named) : resolveId(session, 'webhooks', named)

/** The event itself, or that of a delivery, whose id its receiver saw as eventId. */
const eventNamed = async (session: Session, named: string): Promise<string> => {
  if (session.dryRun) return named
  try {
    return await resolveId(session, 'events', named)
  } catch (error) {
    if (!(error instanceof CliError) || error.exitCode !== exitCodes.notFound) throw error
    const [delivery] = await meant(session, 'deliveries', named)
    if (!delivery) throw await withAge(session, named, error)
    const { deliveries } = await session.graphql<{ deliveries: { eventId: string }[] }>(
      'query ($query: MangoQuery) { deliveries(query: $query) { eventId } }',
      { query: { selector: { id: delivery.id } } },
    )
    return deliveries[0]!.eventId
  }
}

/** Tells of an id from before the oldest event that it is kept no longer: an id has the time at which it was made. */
const withAge = async (session: Session, id: string, error: CliError): Promise<CliError> => {
  const madeMs = isId(id) && id[14] === '7' ? Number.parseInt(id.replace('-', '').slice(0, 12), 16) : undefined
  if (madeMs === undefined) return error
  const { events } = await session.graphql<{ events: { time: string }[] }>(
    'query ($query: MangoQuery) { events(query: $query) { time } }',
    { query: { sort: [{ time: 'asc' }], limit: 1 } },
  )
  const [oldest] = events
  if (oldest && madeMs >= parseIso(oldest.time)!) return error
  const made = toIso(madeMs)
  return new CliError(
    error.exitCode,
    error.code,
    `${error.message} The id is of ${made}, and ` +
      `${oldest ? `the oldest event that is kept is of ${oldest.time}` : 'no event is kept'}.`,
    'Events are kept for a time (TIDINGS_RETENTION_DAYS), and deleted with their deliveries; ask for them sooner.',
  )
}

/** The rows that a name or an id may mean. */
const meant = async (session: Session, resource: Resource, named: string): Promise<{ id: string }[]> => {
  if (!isId(named)) return calledSo(session, resource, named)
  const { rows } = await session.graphql<{ rows: { id: string }[] }>(
    `query ($query: MangoQuery) { rows: ${resource}(query: $query) { id } }`,
    { query: { selector: { id: named }, limit: 1 } },
  )
  return rows
}

/** The organisation of this name, unless a webhook is called so. */
const organisationNamed = async (session: Session, named: string, isAsked: boolean): Promise<string | undefined> => {
  if (session.dryRun) return isAsked ? named : undefined
  if (!isAsked && (await meant(session, 'webhooks', named)).length > 0) return undefined
  const found = await meant(session, 'organisations', named)
  if (found.length === 0 && !isAsked) return undefined
  return resolveId(session, 'organisations', named)
}
