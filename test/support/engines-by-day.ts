/**
 * The test files that `npm test` runs on one engine, though `npm run test:all` runs them on each. Where there is no
 * server, SQLite takes its place. All other files run on each engine every day.
 *
 * `server`: locks, several processes, and statements that take long are at stake, which SQLite has least of.
 * `SQLite`: what is at stake happens before and after the statements, which other files try on each engine.
 */
export const oneEngineByDay: Record<string, 'server' | 'SQLite'> = {
  'test/cli/pull.test.ts': 'server',
  'test/delivery/chaos.test.ts': 'server',
  'test/delivery/fairness-sweep.test.ts': 'server',
  'test/delivery/fairness-tenants.test.ts': 'server',
  'test/delivery/fairness.test.ts': 'server',
  'test/delivery/loop.test.ts': 'server',
  'test/delivery/notices.test.ts': 'server',
  'test/delivery/recorder.test.ts': 'server',
  'test/delivery/revoked-key.test.ts': 'server',
  'test/delivery/secret-rotation.test.ts': 'server',
  'test/graphql/error-codes.test.ts': 'server',
  'test/graphql/noninterference.test.ts': 'server',
  'test/graphql/pull.test.ts': 'server',
  'test/graphql/rate-limit.test.ts': 'server',
  'test/graphql/readers.test.ts': 'server',
  'test/graphql/redeliver-many.test.ts': 'server',
  'test/live/subscription.test.ts': 'server',
  'test/scheduler/healing.test.ts': 'server',
  'test/cli/tickets-endpoints.test.ts': 'SQLite',
  'test/cli/tickets-waiting.test.ts': 'SQLite',
  'test/cli/tickets.test.ts': 'SQLite',
  'test/doctor/doctor.test.ts': 'SQLite',
  'test/graphql/arguments.test.ts': 'SQLite',
  'test/graphql/audit.test.ts': 'SQLite',
  'test/graphql/budget.test.ts': 'SQLite',
  'test/graphql/evidence.test.ts': 'SQLite',
  'test/graphql/examples.test.ts': 'SQLite',
  'test/graphql/project-reports.test.ts': 'SQLite',
  'test/graphql/robustness.test.ts': 'SQLite',
  'test/graphql/signing-secrets.test.ts': 'SQLite',
  'test/graphql/signing.test.ts': 'SQLite',
  'test/graphql/tokens.test.ts': 'SQLite',
  'test/graphql/webhook-deletion.test.ts': 'SQLite',
  'test/graphql/webhook-names.test.ts': 'SQLite',
  'test/graphql/webhooks-per-token.test.ts': 'SQLite',
  'test/http/graphql.test.ts': 'SQLite',
  'test/http/hmac.test.ts': 'SQLite',
  'test/http/public.test.ts': 'SQLite',
  'test/metrics/metrics.test.ts': 'SQLite',
  'test/tracing/tracing.test.ts': 'SQLite',
}
