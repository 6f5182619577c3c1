import type { Knex } from 'knex'
import { type Dialect, dialectOf } from '../server/database/dialect.ts'

// Ids are UUIDs stored as text, so that an id from a log can be pasted into a query. Tidings makes version 7, so rows
// are stored in the order of creation. Times are epoch milliseconds (UTC), dates `YYYY-MM-DD`. The hot tables (events,
// deliveries, attempts, delivery_queue) have no foreign keys.

export const up = async (knex: Knex): Promise<void> => {
  const dialect = dialectOf(knex)
  const table = async (name: string, columns: (t: Columns) => void): Promise<void> => {
    await knex.schema.createTable(name, t => {
      if (dialect.storageEngine) t.engine(dialect.storageEngine)
      columns(new Columns(t, dialect))
    })
  }

  await table('organisations', t => {
    t.id()
    t.text('name', 255).notNullable().index('organisations_by_name')
    t.created()
  })

  await table('projects', t => {
    t.id()
    t.reference('organisation_id', 'organisations').index('projects_by_organisation')
    t.text('name', 255).notNullable().index('projects_by_name')
    t.created()
  })

  await table('users', t => {
    t.id()
    t.text('name', 255).notNullable().index('users_by_name')
    t.created()
  })

  await table('project_reports', t => {
    t.id()
    t.reference('project_id', 'projects')
    t.key('quarter', 6).notNullable()
    t.key('due_date', 10).notNullable()
    t.key('status', 16).notNullable()
    t.uuid('submitter_id')
    t.time('submitted_at')
    t.uuid('approver_id')
    t.key('approved_date', 10)
    t.time('overdue_at')
    t.created()
    t.table.unique(['project_id', 'quarter'], { indexName: 'project_reports_by_project_and_quarter' })
    // The reports that are overdue and not yet announced are one range of this index.
    t.table.index(['status', 'overdue_at', 'due_date'], 'project_reports_by_status')
  })

  await table('access_tokens', t => {
    t.id()
    t.text('name', 255).notNullable()
    t.key('api_key', 40).notNullable().unique({ indexName: 'access_tokens_by_api_key' })
    t.longText('secret_sealed').notNullable()
    t.boolean('sees_all_organisations')
    t.time('expires_at').index('access_tokens_by_expiry')
    t.time('expiry_event_at')
    t.time('revoked_at')
    t.time('last_used_at')
    t.created()
  })

  await table('access_token_permissions', t => {
    t.reference('access_token_id', 'access_tokens')
    t.key('permission', 16).notNullable()
    t.table.primary(['access_token_id', 'permission'])
  })

  await table('access_token_organisations', t => {
    t.reference('access_token_id', 'access_tokens')
    t.reference('organisation_id', 'organisations').index('access_token_organisations_by_organisation')
    t.table.primary(['access_token_id', 'organisation_id'])
  })

  // Signatures that have carried a mutation, kept for as long as the clock window would accept them again.
  await table('used_signatures', t => {
    t.key('signature_hash', 44).primary()
    t.time('expires_at').notNullable().index('used_signatures_by_expiry')
  })

  // The number of requests that a token has made in the current minute, over all processes.
  await table('rate_limits', t => {
    t.uuid('access_token_id').primary()
    t.time('window_start').notNullable()
    t.table.integer('taken').notNullable()
  })

  await table('signing_keys', t => {
    t.key('kid', 43).primary()
    // Two processes that create the next key at the same time collide here; the second one then uses the first one's
    // key.
    t.table.integer('generation').notNullable().unique({ indexName: 'signing_keys_by_generation' })
    t.longText('public_jwk').notNullable()
    t.longText('private_key_sealed').notNullable()
    t.time('created_at').notNullable()
    t.time('active_from').notNullable()
  })

  await table('webhooks', t => {
    t.id()
    t.reference('access_token_id', 'access_tokens').index('webhooks_by_access_token')
    t.text('url', 2048).notNullable()
    t.key('status', 16).notNullable()
    t.text('status_reason', 512)
    // True while the list of the same name is empty, so that matching an event is one indexed condition.
    t.boolean('all_events')
    t.boolean('all_organisations_and_projects')
    // Nothing is sent until then: the receiver answered 429 with Retry-After.
    t.time('held_until')
    t.created()
    t.table.index(['all_organisations_and_projects', 'status'], 'webhooks_by_scope')
  })

  await table('webhook_events', t => {
    t.reference('webhook_id', 'webhooks')
    t.key('event_type', 64).notNullable()
    t.table.primary(['webhook_id', 'event_type'])
  })

  await table('webhook_organisations', t => {
    t.reference('webhook_id', 'webhooks')
    t.reference('organisation_id', 'organisations').index('webhook_organisations_by_organisation')
    t.table.primary(['webhook_id', 'organisation_id'])
  })

  await table('webhook_projects', t => {
    t.reference('webhook_id', 'webhooks')
    t.reference('project_id', 'projects').index('webhook_projects_by_project')
    t.table.primary(['webhook_id', 'project_id'])
  })

  await table('events', t => {
    t.id()
    t.key('type', 64).notNullable()
    t.uuid('organisation_id')
    t.uuid('project_id')
    // For an event of several organisations, which has no organisation_id: true means all organisations, false those in
    // event_organisations.
    t.boolean('all_organisations')
    t.longText('payload').notNullable()
    t.time('created_at').notNullable().index('events_by_time')
    t.table.index(['organisation_id', 'created_at'], 'events_by_organisation')
    t.table.index(['project_id', 'created_at'], 'events_by_project')
  })

  await table('event_organisations', t => {
    t.uuid('event_id').notNullable()
    t.uuid('organisation_id').notNullable().index('event_organisations_by_organisation')
    t.table.primary(['event_id', 'organisation_id'])
  })

  await table('deliveries', t => {
    t.id()
    t.uuid('event_id').notNullable().index('deliveries_by_event')
    t.uuid('webhook_id').notNullable()
    t.key('event_type', 64).notNullable()
    t.key('status', 16).notNullable()
    t.table.integer('attempt_count').notNullable().defaultTo(0)
    t.time('next_attempt_at')
    t.time('created_at').notNullable().index('deliveries_by_time')
    t.time('finished_at')
    // Cancelling pending deliveries, a webhook's health and its last delivery each read one range of this index.
    t.table.index(['webhook_id', 'status', 'finished_at'], 'deliveries_by_webhook')
  })

  await table('attempts', t => {
    t.uuid('delivery_id').notNullable()
    t.table.integer('number').notNullable()
    t.time('started_at').notNullable()
    t.table.integer('duration_ms')
    t.table.integer('status_code')
    t.key('failure', 32)
    t.longText('failure_detail')
    t.longText('response')
    t.time('retry_after')
    t.table.primary(['delivery_id', 'number'])
  })

  // The queue, apart from the history: one row for each pending delivery, deleted when the delivery is settled. See
  // server/delivery/queue.ts.
  await table('delivery_queue', t => {
    t.uuid('delivery_id').primary()
    t.uuid('event_id').notNullable()
    t.uuid('webhook_id').notNullable()
    t.time('due_at').notNullable().index('delivery_queue_by_due_time')
    t.uuid('lease')
    t.table.integer('attempt').notNullable().defaultTo(0)
    t.table.integer('failure_count').notNullable().defaultTo(0)
    t.time('throttled_since')
    t.table.index(['webhook_id', 'due_at'], 'delivery_queue_by_webhook')
  })
}

/** The column types of Tidings on one engine. A column is nullable unless it says otherwise. */
class Columns {
  readonly table: Knex.CreateTableBuilder
  readonly #dialect: Dialect

  constructor(table: Knex.CreateTableBuilder, dialect: Dialect) {
    this.table = table
    this.#dialect = dialect
  }

  id() {
    this.uuid('id').primary()
  }
  created() {
    this.time('created_at').notNullable()
    this.time('updated_at').notNullable()
  }
  uuid(name: string) {
    return this.key(name, 36)
  }
  key(name: string, length: number) {
    return this.table.specificType(name, this.#dialect.key(length))
  }
  text(name: string, length: number) {
    return this.table.specificType(name, this.#dialect.text(length))
  }
  longText(name: string) {
    return this.table.specificType(name, this.#dialect.longText)
  }
  time(name: string) {
    return this.table.bigInteger(name)
  }
  boolean(name: string) {
    return this.table.specificType(name, this.#dialect.boolean).notNullable().defaultTo(0)
  }
  reference(name: string, to: string) {
    this.table.foreign(name).references(`${to}.id`)
    return this.uuid(name).notNullable()
  }
}

export const down = async (knex: Knex): Promise<void> => {
  for (const name of [
    'delivery_queue',
    'attempts',
    'deliveries',
    'event_organisations',
    'events',
    'webhook_projects',
    'webhook_organisations',
    'webhook_events',
    'webhooks',
    'signing_keys',
    'rate_limits',
    'used_signatures',
    'access_token_organisations',
    'access_token_permissions',
    'access_tokens',
    'project_reports',
    'users',
    'projects',
    'organisations',
  ]) {
    await knex.schema.dropTable(name)
  }
}
