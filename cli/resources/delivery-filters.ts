import { Option } from '@commander-js/extra-typings'
import { deliveryStatuses, eventTypes } from '../../shared/vocabulary.ts'
import type { Session } from '../connection/session.ts'
import { collect } from '../options.ts'
import { conditionsOf, type Window, windowOf } from '../window.ts'
import { resolveId } from './ids.ts'
import { knownStatuses } from './timeline.ts'

// The filters of deliveries, with one meaning in every command that takes them.

export const typeOption = (only = 'only of this type') => new Option('--type <type>', only).choices(eventTypes)

/** The former name of --type. */
export const formerTypeOption = () =>
  new Option('--event-type <type>', 'the former name of --type').choices(eventTypes).hideHelp()

/** `--status`, which takes several. */
export const statusesOption = (only = 'only those in one of these statuses') =>
  new Option('--status <statuses>', only)
    .choices(deliveryStatuses)
    .argParser<string[] | undefined>((value, before) => collect(value, before))

export interface DeliveryFilters extends Window {
  webhook?: string | undefined
  status?: string[] | undefined
  type?: string | undefined
  eventType?: string | undefined
  organisation?: string | undefined
  project?: string | undefined
}

/** The Mango conditions of the filters. Throws a CliError for what does not exist, and for times that are none. */
export const deliveryConditions = async (
  session: Session,
  { webhook, status, type, eventType = type, organisation, project, ...window }: DeliveryFilters,
): Promise<Record<string, unknown>[]> => {
  const statuses = knownStatuses(status)
  const span = windowOf(session.output, window)
  const webhookId = await resolveId(session, 'webhooks', webhook)
  const organisationId = await resolveId(session, 'organisations', organisation)
  const projectId = await resolveId(session, 'projects', project)
  return [
    ...(webhookId ? [{ webhookId }] : []),
    ...(statuses ? [{ status: statuses.length === 1 ? statuses[0] : { $in: statuses } }] : []),
    ...(eventType ? [{ eventType }] : []),
    ...(organisationId ? [{ 'event.organisationId': organisationId }] : []),
    ...(projectId ? [{ 'event.projectId': projectId }] : []),
    ...conditionsOf(span, 'createdAt'),
  ]
}
