import { deliveries, events } from '../../domain/resources.ts'
import { column, needs, type Resolvers, related, time } from './resolvers.ts'

export const eventResolvers: Resolvers = {
  Query: {
    events: needs('read', (_root, { query }, context) => context.list(events, query)),
  },
  Event: {
    organisationId: column('organisation_id'),
    organisation: related('organisation_id', context => context.loaders.seenOrganisation),
    projectId: column('project_id'),
    project: related('project_id', context => context.loaders.seenProject),
    payload: event => JSON.parse(event.payload),
    time: time('created_at'),
    deliveries: needs('read', (event, { query }, context, info) =>
      context.children(info, deliveries, query, { column: 'event_id' }, event.id),
    ),
  },
}
