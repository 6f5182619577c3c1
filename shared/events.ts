import { z } from 'zod'
import type { EventType } from './vocabulary.ts'

// The registry of events. The sender, the receiver's types and the OpenAPI description all read it.

const id = z.uuid()
const quarter = z
  .string()
  .regex(/^\d{4}-[1-4]$/)
  .describe('Year and quarter, such as 2026-3')
const report = { id: id.describe('The report.'), projectId: id.describe('Its project.'), quarter }

/** Ids that no row has, so that a receiver can recognise an example by any of them. */
export const exampleIds = {
  webhook: '00000000-0000-7000-8000-000000000001',
  delivery: '00000000-0000-7000-8000-000000000002',
  projectReport: '00000000-0000-7000-8000-000000000003',
  project: '00000000-0000-7000-8000-000000000004',
  submitter: '00000000-0000-7000-8000-000000000005',
  approver: '00000000-0000-7000-8000-000000000006',
  accessToken: '00000000-0000-7000-8000-000000000007',
  aboutWebhook: '00000000-0000-7000-8000-000000000008',
  aboutDelivery: '00000000-0000-7000-8000-000000000009',
  aboutEvent: '00000000-0000-7000-8000-00000000000a',
} as const
const exampleReport = { id: exampleIds.projectReport, projectId: exampleIds.project, quarter: '2026-3' }

/** One type of event. The schema is closed for the sender; the published one tells receivers to expect more members. */
interface EventDefinition<Payload extends z.ZodObject = z.ZodObject> {
  summary: string
  payload: Payload
  example: z.infer<Payload>
}

const define = <Payload extends z.ZodObject>(definition: EventDefinition<Payload>) => definition

export const events = {
  ping: define({
    summary: 'Sent when a webhook is registered, which requires the answer 200 OK, and on demand.',
    payload: z.strictObject({}),
    example: {},
  }),
  project_report_quarterly_submitted: define({
    summary: 'The quarterly report of a project was submitted.',
    payload: z.strictObject({
      projectReport: z.strictObject({
        ...report,
        submitterId: id.describe('The user who submitted it.'),
        submitterName: z.string().describe('The name of that user.'),
      }),
    }),
    example: {
      projectReport: { ...exampleReport, submitterId: exampleIds.submitter, submitterName: 'Ada Okafor' },
    },
  }),
  project_report_quarterly_approved: define({
    summary: 'The quarterly report of a project was approved.',
    payload: z.strictObject({
      projectReport: z.strictObject({
        ...report,
        approverId: id.describe('The user who approved it.'),
        approverName: z.string().describe('The name of that user.'),
        approvedDate: z.iso.date().describe('The day of the approval.'),
      }),
    }),
    example: {
      projectReport: {
        ...exampleReport,
        approverId: exampleIds.approver,
        approverName: 'Jonas Lind',
        approvedDate: '2026-11-20',
      },
    },
  }),
  project_report_quarterly_overdue: define({
    summary: 'The quarterly report of a project was still open after its due date.',
    payload: z.strictObject({ projectReport: z.strictObject(report) }),
    example: { projectReport: exampleReport },
  }),
  token_expired: define({
    summary: 'An access token has expired.',
    payload: z.strictObject({ accessTokenId: id.describe('The access token.') }),
    example: { accessTokenId: exampleIds.accessToken },
  }),
  webhook_inactive: define({
    summary: 'Another webhook has become inactive. Sent only to webhooks that name this type.',
    payload: z.strictObject({
      webhook: z.strictObject({
        id: id.describe('The webhook that has become inactive.'),
        url: z.string().describe('Its URL.'),
        name: z.string().nullable().describe('The name; null if it has none.'),
        statusReason: z.string().describe('Why it is inactive, and what to do.'),
      }),
    }),
    example: {
      webhook: {
        id: exampleIds.aboutWebhook,
        url: 'https://example.com/hooks',
        name: 'Ledger',
        statusReason: 'The endpoint answered 429 without a readable Retry-After.',
      },
    },
  }),
  delivery_dropped: define({
    summary: 'A delivery to another webhook was dropped. Sent only to webhooks that name this type.',
    payload: z.strictObject({
      delivery: z.strictObject({
        id: id.describe('The delivery that was dropped.'),
        eventId: id.describe('The id of the event itself: the `sub` of its tokens.'),
        eventType: z.string().describe('The type of the event.'),
        webhookId: id.describe('The webhook that it was for.'),
        webhookUrl: z.string().describe('The URL of that webhook.'),
        webhookName: z.string().nullable().describe('The name of the webhook; null if it has none.'),
        attemptCount: z.int().describe('How often it was sent.'),
        reason: z
          .string()
          .describe(
            '`retries_exhausted`: the last retry failed; `throttled_too_long`: the endpoint answered 429 for 72 h.',
          ),
        nextPingAt: z.iso
          .datetime({ offset: true })
          .nullable()
          .describe(
            'When the endpoint is pinged next: at its first 200, the webhook gets what it missed ' +
              '(`recovery: automatic`). Null if nothing is sent again by itself.',
          ),
      }),
    }),
    example: {
      delivery: {
        id: exampleIds.aboutDelivery,
        eventId: exampleIds.aboutEvent,
        eventType: 'project_report_quarterly_submitted',
        webhookId: exampleIds.aboutWebhook,
        webhookUrl: 'https://example.com/hooks',
        webhookName: 'Ledger',
        attemptCount: 11,
        reason: 'retries_exhausted',
        nextPingAt: null,
      },
    },
  }),
} as const satisfies Record<EventType, EventDefinition>

export type EventPayload<Type extends EventType> = z.infer<(typeof events)[Type]['payload']>
