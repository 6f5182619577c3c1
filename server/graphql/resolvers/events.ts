import { deliveries } from '../../domain/deliveries.ts'
import { events } from '../../domain/events.ts'
import { column, needs, type Resolvers, related, time } from './resolvers.ts'

export const eventResolvers: Resolvers = {
  Query: {
    events: needs('read', (_root, { query }, context) => context.list(events, query)),
  },
  Event: {
    organisationId: column('organisation_id'),
    organisation: related('organisation_id', context => context.loaders.organisation),
    projectId: column('project_id'),
    project: related('project_id', context => context.loaders.project),
    payload: event => JSON.parse(event.payload),
    time: time('created_at'),
    deliveries: (event, { query }, context) => context.children(deliveries, query, { column: 'event_id' }, event.id),
  },
}
