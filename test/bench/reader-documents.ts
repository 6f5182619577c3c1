import type { Credentials } from '../../shared/hmac.ts'
import type { Prey, Sent } from './documents.ts'

// The heaviest queries that a read token may send. Add what you find.

/** `n`: the client, so that each may ask something else. */
export type Heavy = { name: string; sents: (as: Credentials, n: number) => Sent }

const times = <T>(count: number, make: (n: number) => T): T[] => Array.from({ length: count }, (_, n) => make(n))
const WIDE = `id eventType status attemptCount createdAt finishedAt event { id type payload }
  webhook { id url organisationIds projectIds health { pending delivered } } attempts { number response }`

export const heavyQueries = ({ webhookId, organisationIds }: Prey): Heavy[] => {
  const heavy = (name: string, query: string, variablesOf: (n: number) => object = () => ({})): Heavy => ({
    name,
    sents: (as, n) => ({ as, query, variables: variablesOf(n) }),
  })
  const list = (name: string, of: string, fields: string, queryOf: (n: number) => object): Heavy =>
    heavy(name, `query ($query: MangoQuery) { ${of}(query: $query) { ${fields} } }`, n => ({ query: queryOf(n) }))
  const [organisationId] = organisationIds
  return [
    // What others have beside it is their share of the machine, whatever is asked.
    heavy('five webhooks', '{ webhooks(query: {limit: 5}) { id url status } }'),
    list('$or of 10 patterns on long urls', 'webhooks', 'id', () => ({
      selector: { url: { $or: times(10, n => ({ $regex: `A.{91${n}}[x-z]` })) } },
    })),
    list('a pattern of 280 instructions on long urls', 'webhooks', 'id', n => ({
      selector: { url: { $regex: `A.{${260 + (n % 10)}}[x-z]` } },
    })),
    list("patterns on deliveries' urls", 'deliveries', 'id', n => ({
      selector: { 'webhook.url': { $regex: `A.{${260 + (n % 10)}}[x-z]` } },
    })),
    list('450 patterns on names', 'users', 'id', n => ({
      selector: { $or: times(450, m => ({ name: { $regex: `j${m}!${n}` } })) },
      sort: [{ name: 'desc' }],
      limit: 10,
    })),
    list('10,000 wide deliveries', 'deliveries', WIDE, () => ({ limit: 10_000 })),
    list('10,000 wide deliveries by a payload', 'deliveries', WIDE, () => ({
      sort: [{ 'event.payload.projectReport.submitterName': 'desc' }],
      limit: 10_000,
    })),
    list('10,000 wide deliveries, some of them skipped', 'deliveries', WIDE, n => ({
      sort: [{ 'webhook.url': 'desc' }],
      skip: 9_000 + n,
      limit: 10_000,
    })),
    list('all events by payload', 'events', 'id payload', n => ({
      sort: [{ [`payload.projectReport.nothing${n}`]: 'asc' }, { 'payload.projectReport.submitterName': 'desc' }],
      limit: 10_000,
    })),
    list('$elemMatch, $allMatch and $keyMapMatch on payloads', 'events', 'id', n => ({
      selector: {
        $or: times(20, m => ({
          payload: {
            $keyMapMatch: { $regex: `pr.*t${m}${n}` },
            projectReport: { $keyMapMatch: { $or: times(20, k => ({ $regex: `sub.*${m}${k}` })) } },
          },
        })),
      },
    })),
    list('$elemMatch on lists', 'webhooks', 'id', n => ({
      selector: { $nor: times(100, m => ({ events: { $elemMatch: { $regex: `a+${m}b*c${n}` } } })) },
    })),
    heavy('counts by payload paths', COUNTS, n => ({
      resource: 'events',
      by: ['payload.projectReport.submitterName', 'payload.projectReport.id', `payload.nothing${n}`],
    })),
    heavy('counts of deliveries by many', COUNTS, n => ({
      resource: 'deliveries',
      by: ['createdAt:minute', 'finishedAt:minute@Europe/Berlin', 'webhook.url', 'event.payload.projectReport.id'],
      selector: { id: { $ne: `${n}` } },
    })),
    heavy(
      'counts, 45 at once',
      `{ ${times(
        45,
        n => `a${n}: counts(resource: deliveries, by: ["webhook.url", "status"],
        selector: {attemptCount: {_ne: ${n + 5}}}) { key count }`,
      ).join(' ')} }`,
    ),
    heavy('thrice nested lists', '{projects{organisation{projects{organisation{projects{id}}}}}}'),
    heavy(
      'deliveries under deliveries',
      `query ($webhookId: UUID!) {
        deliveries(query: {selector: {webhookId: $webhookId}}) { webhook { deliveries { id } } } }`,
      () => ({ webhookId }),
    ),
    list('9,900 ids', 'users', 'id', n => ({
      selector: {
        $and: [
          { id: { $in: organisationIds.slice(0, 4_950) } },
          { name: { $nin: organisationIds.slice(n, 4_950 + n) } },
        ],
      },
    })),
    heavy(
      '45 × users',
      `{ ${times(45, n => `a${n}: users(query: {limit: 1000, skip: ${n * 10}}) { id name }`).join(' ')} }`,
    ),
    heavy(
      '45 sorted lists',
      `{ ${times(
        45,
        n => `a${n}: deliveries(query: {sort: [{attemptCount: "desc"}, {finishedAt: "asc"}], skip: ${n},
        limit: 5}) { id }`,
      ).join(' ')} }`,
    ),
    heavy(
      '40 fields of 10,000 users',
      `{ users(query: {limit: 10000}) { ${times(40, n => `a${n}: name`).join(' ')} } }`,
    ),
    heavy(
      '45 × webhooks with their health',
      `{ ${times(45, n => `a${n}: webhooks { health { pending delivered rejected } lastDeliveryAt }`).join(' ')} }`,
    ),
    heavy(
      '45 explanations with patterns',
      `{ ${times(
        45,
        n => `a${n}: explain(resource: webhooks, query: {selector: {url: {_regex:
        "(?i)A.{1${n + 10}}[x-z]"}}}) { rowsExamined }`,
      ).join(' ')} }`,
    ),
    heavy(
      'explainDelivery, 45 at once',
      `query ($webhookId: UUID!, $eventId: UUID!) { ${times(
        45,
        n => `a${n}: explainDelivery(webhookId: $webhookId,
        eventId: $eventId) { verdict reasons { code message } }`,
      ).join(' ')} }`,
      () => ({ webhookId, eventId: webhookId }),
    ),
    list('afterValues in the middle of texts', 'deliveries', 'id', n => ({
      sort: [{ 'webhook.url': 'asc' }, { 'event.payload.projectReport.submitterName': 'asc' }],
      after: webhookId,
      afterValues: ['http://1', `Person ${n}`],
      limit: 10_000,
    })),
    list('beginsWith, size, mod and type', 'webhooks', 'id', n => ({
      selector: {
        $nor: times(450, m => ({
          $or: [{ url: { $beginsWith: `http://x${m}${n}` } }, { 'events.0': { $type: 'object' } }],
        })),
      },
    })),
    list(`the crowd of one organisation`, 'organisations', 'projects { projectReports { id } }', () => ({
      selector: { id: organisationId },
    })),
  ]
}

const COUNTS = `query ($resource: Resource!, $by: [String!], $selector: MangoSelector) {
  counts(resource: $resource, by: $by, selector: $selector) { key count } }`
