import { z } from 'zod'
import type { EventType } from './vocabulary.ts'

// The registry of events: what the sender sends, the receiver's
// types and the OpenAPI description are all read from here.

const id = z.uuid()
const quarter = z
  .string()
  .regex(/^\d{4}-[1-4]$/)
  .describe('Year and quarter, such as 2026-3')
const report = { id, projectId: id, quarter }

export const events = {
  ping: {
    summary: 'Sent when a webhook is registered, which requires a 200 OK, and on demand.',
    payload: z.strictObject({}),
  },
  project_report_quarterly_submitted: {
    summary: 'The quarterly report of a project was submitted.',
    payload: z.strictObject({
      projectReport: z.strictObject({ ...report, submitterId: id, submitterName: z.string() }),
    }),
  },
  project_report_quarterly_approved: {
    summary: 'The quarterly report of a project was approved.',
    payload: z.strictObject({
      projectReport: z.strictObject({
        ...report,
        approverId: id,
        approverName: z.string(),
        approvedDate: z.iso.date(),
      }),
    }),
  },
  project_report_quarterly_overdue: {
    summary: 'The quarterly report of a project was still open after its due date.',
    payload: z.strictObject({ projectReport: z.strictObject(report) }),
  },
  token_expired: {
    summary: 'An access token has expired.',
    payload: z.strictObject({ accessTokenId: id }),
  },
} as const satisfies Record<EventType, { summary: string; payload: z.ZodObject }>

export type EventPayload<Type extends EventType> = z.infer<(typeof events)[Type]['payload']>
