import {
  deliveryStatuses,
  eventTypes,
  permissions,
  reportStatuses,
  webhookOrderings,
  webhookRecoveries,
  webhookSignings,
  webhookStatuses,
  webhookTransports,
} from '../../shared/vocabulary.ts'
import type { Resource } from '../mango/resource.ts'
import { deliveryHours } from './delivery-hours.ts'
import { healingTimeOf } from './missed.ts'
import { clientsOf } from './pull-clients.ts'
import { waitsForOf } from './waits-for.ts'
import { healthOf, lastDeliveryOf } from './webhook-health.ts'

// Everything that can be read, as data. Selectors, GraphQL's fields and the types of rows are derived from it. A new
// field needs a migration, a line here, and a line in schema.graphql.

/** A resource with a query of its own. */
export type Entity = Resource & {
  /** The singular, for messages. */
  singular: string
  /**
   * Lists of other rows that name this one in their column `key`. They are part of answers only; selectors cannot use
   * them.
   */
  lists?: Record<string, { resource: () => Entity; key: string }>
}

/** The organisations that projects belong to. */
export const organisations = {
  name: 'organisations',
  singular: 'organisation',
  table: 'organisations',
  fields: {
    id: { kind: 'column', column: 'id', type: 'uuid' },
    name: { kind: 'column', column: 'name', type: 'string' },
  },
  lists: { projects: { resource: (): Entity => projects, key: 'organisation_id' } },
} as const satisfies Entity

export const projects = {
  name: 'projects',
  singular: 'project',
  table: 'projects',
  fields: {
    id: { kind: 'column', column: 'id', type: 'uuid' },
    name: { kind: 'column', column: 'name', type: 'string' },
    organisationId: { kind: 'column', column: 'organisation_id', type: 'uuid' },
    organisation: { kind: 'related', column: 'organisation_id', resource: (): Entity => organisations },
  },
  lists: { projectReports: { resource: (): Entity => projectReports, key: 'project_id' } },
} as const satisfies Entity

export const users = {
  name: 'users',
  singular: 'user',
  table: 'users',
  fields: {
    id: { kind: 'column', column: 'id', type: 'uuid' },
    name: { kind: 'column', column: 'name', type: 'string' },
  },
} as const satisfies Entity

export const projectReports = {
  name: 'projectReports',
  singular: 'project report',
  table: 'project_reports',
  fields: {
    id: { kind: 'column', column: 'id', type: 'uuid' },
    projectId: { kind: 'column', column: 'project_id', type: 'uuid' },
    project: { kind: 'related', column: 'project_id', resource: (): Entity => projects },
    quarter: { kind: 'column', column: 'quarter', type: 'string' },
    dueDate: { kind: 'column', column: 'due_date', type: 'date' },
    status: { kind: 'column', column: 'status', type: 'string', values: reportStatuses },
    submitterId: { kind: 'column', column: 'submitter_id', type: 'uuid', nullable: true },
    submitter: { kind: 'related', column: 'submitter_id', resource: (): Entity => users },
    submittedAt: { kind: 'column', column: 'submitted_at', type: 'time', nullable: true },
    approverId: { kind: 'column', column: 'approver_id', type: 'uuid', nullable: true },
    approver: { kind: 'related', column: 'approver_id', resource: (): Entity => users },
    approvedDate: { kind: 'column', column: 'approved_date', type: 'date', nullable: true },
    overdueAt: { kind: 'column', column: 'overdue_at', type: 'time', nullable: true },
  },
} as const satisfies Entity

export const webhooks = {
  name: 'webhooks',
  singular: 'webhook',
  table: 'webhooks',
  fields: {
    id: { kind: 'column', column: 'id', type: 'uuid' },
    url: { kind: 'column', column: 'url', type: 'string' },
    name: { kind: 'column', column: 'name', type: 'string', nullable: true },
    labels: { kind: 'json', column: 'labels' },
    events: {
      kind: 'list',
      table: 'webhook_events',
      key: 'webhook_id',
      column: 'event_type',
      type: 'string',
      values: eventTypes,
    },
    organisationIds: {
      kind: 'list',
      table: 'webhook_organisations',
      key: 'webhook_id',
      column: 'organisation_id',
      type: 'uuid',
      of: (): Entity => organisations,
    },
    projectIds: {
      kind: 'list',
      table: 'webhook_projects',
      key: 'webhook_id',
      column: 'project_id',
      type: 'uuid',
      of: (): Entity => projects,
    },
    status: { kind: 'column', column: 'status', type: 'string', values: webhookStatuses },
    ordering: { kind: 'column', column: 'ordering', type: 'string', values: webhookOrderings },
    transport: { kind: 'column', column: 'transport', type: 'string', values: webhookTransports },
    signing: { kind: 'column', column: 'signing', type: 'string', values: webhookSignings },
    recovery: { kind: 'column', column: 'recovery', type: 'string', values: webhookRecoveries },
    missedSince: healingTimeOf('missedSince'),
    nextPingAt: healingTimeOf('nextPingAt'),
    recoveredAt: healingTimeOf('recoveredAt'),
    headers: { kind: 'list', table: 'webhook_headers', key: 'webhook_id', column: 'name', type: 'string' },
    statusReason: { kind: 'column', column: 'status_reason', type: 'string', nullable: true },
    createdAt: { kind: 'column', column: 'created_at', type: 'time' },
    updatedAt: { kind: 'column', column: 'updated_at', type: 'time' },
    deletedAt: { kind: 'column', column: 'deleted_at', type: 'time', nullable: true },
    lastDeliveryAt: lastDeliveryOf(
      (): Entity => webhooks,
      (): Entity => deliveries,
    ),
    health: healthOf((): Entity => deliveries),
    clients: clientsOf(),
  },
  lists: { deliveries: { resource: (): Entity => deliveries, key: 'webhook_id' } },
} as const satisfies Entity

export const events = {
  name: 'events',
  singular: 'event',
  table: 'events',
  fields: {
    id: { kind: 'column', column: 'id', type: 'uuid' },
    type: { kind: 'column', column: 'type', type: 'string', values: eventTypes },
    organisationId: { kind: 'column', column: 'organisation_id', type: 'uuid', nullable: true },
    organisation: { kind: 'related', column: 'organisation_id', resource: (): Entity => organisations },
    projectId: { kind: 'column', column: 'project_id', type: 'uuid', nullable: true },
    project: { kind: 'related', column: 'project_id', resource: (): Entity => projects },
    payload: { kind: 'json', column: 'payload' },
    time: { kind: 'column', column: 'created_at', type: 'time' },
    example: { kind: 'column', column: 'example', type: 'boolean' },
  },
  lists: { deliveries: { resource: (): Entity => deliveries, key: 'event_id' } },
} as const satisfies Entity

/** The requests of a delivery. */
export const attempts = {
  name: 'attempts',
  table: 'attempts',
  fields: {
    number: { kind: 'column', column: 'number', type: 'integer' },
    startedAt: { kind: 'column', column: 'started_at', type: 'time' },
    durationMs: { kind: 'column', column: 'duration_ms', type: 'integer', nullable: true },
    statusCode: { kind: 'column', column: 'status_code', type: 'integer', nullable: true },
    failure: { kind: 'column', column: 'failure', type: 'string', nullable: true },
    failureDetail: { kind: 'column', column: 'failure_detail', type: 'string', nullable: true },
    response: { kind: 'column', column: 'response', type: 'string', nullable: true },
    retryAfter: { kind: 'column', column: 'retry_after', type: 'time', nullable: true },
    remoteAddress: { kind: 'part', column: 'evidence', part: 'remoteAddress', text: true },
    httpVersion: { kind: 'part', column: 'evidence', part: 'httpVersion', text: true },
    phases: { kind: 'part', column: 'evidence', part: 'phases' },
    requestHeaders: { kind: 'part', column: 'evidence', part: 'requestHeaders' },
    responseHeaders: { kind: 'part', column: 'evidence', part: 'responseHeaders' },
    keyId: { kind: 'part', column: 'evidence', part: 'keyId', text: true },
    pulledBy: { kind: 'part', column: 'evidence', part: 'pulledBy' },
  },
} as const satisfies Resource

export const deliveries = {
  name: 'deliveries',
  singular: 'delivery',
  table: 'deliveries',
  fields: {
    id: { kind: 'column', column: 'id', type: 'uuid' },
    webhookId: { kind: 'column', column: 'webhook_id', type: 'uuid' },
    webhook: { kind: 'related', column: 'webhook_id', resource: (): Entity => webhooks },
    eventId: { kind: 'column', column: 'event_id', type: 'uuid' },
    eventType: { kind: 'column', column: 'event_type', type: 'string', values: eventTypes },
    event: { kind: 'related', column: 'event_id', resource: (): Entity => events },
    status: { kind: 'column', column: 'status', type: 'string', values: deliveryStatuses },
    handledBefore: { kind: 'column', column: 'handled_before', type: 'boolean' },
    attemptCount: { kind: 'column', column: 'attempt_count', type: 'integer' },
    nextAttemptAt: { kind: 'column', column: 'next_attempt_at', type: 'time', nullable: true },
    waitsFor: waitsForOf((): Entity => deliveries),
    createdAt: { kind: 'column', column: 'created_at', type: 'time' },
    finishedAt: { kind: 'column', column: 'finished_at', type: 'time', nullable: true },
    attempts: { kind: 'children', resource: (): Resource => attempts, key: 'delivery_id', orderBy: 'number' },
  },
  sums: () => deliveryHours,
} as const satisfies Entity

export const accessTokens = {
  name: 'accessTokens',
  singular: 'access token',
  table: 'access_tokens',
  fields: {
    id: { kind: 'column', column: 'id', type: 'uuid' },
    name: { kind: 'column', column: 'name', type: 'string' },
    apiKey: { kind: 'column', column: 'api_key', type: 'string' },
    permissions: {
      kind: 'list',
      table: 'access_token_permissions',
      key: 'access_token_id',
      column: 'permission',
      type: 'string',
      values: permissions,
    },
    seesAllOrganisations: { kind: 'column', column: 'sees_all_organisations', type: 'boolean' },
    organisationIds: {
      kind: 'list',
      table: 'access_token_organisations',
      key: 'access_token_id',
      column: 'organisation_id',
      type: 'uuid',
      of: (): Entity => organisations,
    },
    expiresAt: { kind: 'column', column: 'expires_at', type: 'time', nullable: true },
    revokedAt: { kind: 'column', column: 'revoked_at', type: 'time', nullable: true },
    lastUsedAt: { kind: 'column', column: 'last_used_at', type: 'time', nullable: true },
    createdAt: { kind: 'column', column: 'created_at', type: 'time' },
  },
} as const satisfies Entity

/** A change and its author: a row of `audit.ts`. */
export const auditLog = {
  name: 'auditLog',
  singular: 'audit log entry',
  table: 'audit_log',
  fields: {
    id: { kind: 'column', column: 'id', type: 'uuid' },
    time: { kind: 'column', column: 'created_at', type: 'time' },
    accessTokenId: { kind: 'column', column: 'access_token_id', type: 'uuid', nullable: true },
    accessToken: { kind: 'related', column: 'access_token_id', resource: (): Entity => accessTokens },
    actor: { kind: 'column', column: 'actor', type: 'string', nullable: true },
    operation: { kind: 'column', column: 'operation', type: 'string' },
    arguments: { kind: 'json', column: 'arguments' },
    subjectId: { kind: 'column', column: 'subject_id', type: 'string', nullable: true },
    requestId: { kind: 'column', column: 'request_id', type: 'string', nullable: true },
  },
} as const satisfies Entity

/** The resources by the names of their queries. */
export const resources: Record<string, Entity> = {
  organisations,
  projects,
  users,
  projectReports,
  webhooks,
  events,
  deliveries,
  accessTokens,
  auditLog,
}

// The rows for rules and tests: the columns above, and internal ones.

export type OrganisationRow = RowOf<typeof organisations>
export type ProjectRow = RowOf<typeof projects>
export type UserRow = RowOf<typeof users>
export type ProjectReportRow = RowOf<typeof projectReports>
export type WebhookRow = RowOf<typeof webhooks> & {
  access_token_id: string
  all_events: number
  all_organisations_and_projects: number
  held_until: number | null
  /** What each request carries: `webhook-requests.ts`. */
  request_sealed: string | null
  ordered_since: number
  /** Since when it heals itself; null if it does not. */
  automatic_since: number | null
  epoch: number
  ended_epoch: number
}
export type EventRow = RowOf<typeof events> & { all_organisations: number; about_webhook_id: string | null }
export type DeliveryRow = RowOf<typeof deliveries>
export type AttemptRow = RowOf<typeof attempts> & { delivery_id: string }
export type AccessTokenRow = RowOf<typeof accessTokens> & { secret_sealed: string }

/** A row in its stored form: times are epoch milliseconds, booleans 0 or 1. */
type RowOf<R extends Resource> = {
  [Name in keyof R['fields'] as ColumnOf<R['fields'][Name]>]: ValueOf<R['fields'][Name]>
}
type ColumnOf<F> = F extends { kind: 'column' | 'json'; column: infer Column extends string } ? Column : never
type ValueOf<F> =
  | (F extends { values: readonly (infer Value)[] }
      ? Value
      : F extends { type: 'integer' | 'boolean' | 'time' }
        ? number
        : string)
  | (F extends { nullable: true } ? null : never)
