import type { Knex } from 'knex'
import * as initial from './0001_initial.ts'
import * as receipts from './0002_receipts.ts'
import * as epochs from './0003_epochs.ts'
import * as idempotencyKeys from './0004_idempotency_keys.ts'
import * as namedOrganisations from './0005_named_organisations.ts'
import * as webhookNames from './0007_webhook_names.ts'
import * as examplesAndNotices from './0008_examples_and_notices.ts'
import * as ordering from './0009_ordering.ts'
import * as keys from './0010_keys.ts'
import * as auditLog from './0011_audit_log.ts'
import * as traces from './0012_traces.ts'
import * as schedule from './0013_schedule.ts'
import * as reads from './0014_reads.ts'
import * as signing from './0015_signing.ts'
import * as pull from './0016_pull.ts'
import * as attemptEvidence from './0017_attempt_evidence.ts'
import * as recovery from './0018_recovery.ts'
import * as endedWebhooks from './0019_ended_webhooks.ts'
import * as trials from './0020_trials.ts'
import * as webhookVersions from './0021_webhook_versions.ts'
import * as pullClients from './0022_pull_clients.ts'
import * as automaticSince from './0023_automatic_since.ts'
import * as deliveryHours from './0024_delivery_hours.ts'
import * as namedProjectsIndex from './0025_named_projects_index.ts'

export type Migration = {
  /** Every statement can be repeated, so that the next run continues one that was killed. */
  up(knex: Knex): Promise<void>
  down(knex: Knex): Promise<void>
  /**
   * Only for a migration that takes away what earlier versions use: the migration that a version must know to run on
   * the schema after this one. A migration without it only adds nullable columns or columns with a default, so that
   * processes of the previous version run beside it.
   */
  needs?: string
}

/** Every migration by its name, in order. A released migration never changes its name or what it does. */
export const migrations: Record<string, Migration> = {
  '0001_initial': initial,
  '0002_receipts': receipts,
  '0003_epochs': epochs,
  '0004_idempotency_keys': idempotencyKeys,
  '0005_named_organisations': namedOrganisations,
  '0007_webhook_names': webhookNames,
  '0008_examples_and_notices': examplesAndNotices,
  '0009_ordering': ordering,
  '0010_keys': keys,
  '0011_audit_log': auditLog,
  '0012_traces': traces,
  '0013_schedule': schedule,
  '0014_reads': reads,
  '0015_signing': signing,
  '0016_pull': pull,
  '0017_attempt_evidence': attemptEvidence,
  '0018_recovery': recovery,
  '0019_ended_webhooks': endedWebhooks,
  '0020_trials': trials,
  '0021_webhook_versions': webhookVersions,
  '0022_pull_clients': pullClients,
  '0023_automatic_since': automaticSince,
  '0024_delivery_hours': deliveryHours,
  '0025_named_projects_index': namedProjectsIndex,
}
