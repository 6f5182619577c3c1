// biome-ignore-all format: written by a script
// Written by scripts/receiver-payloads.ts from shared/events.ts.

/** What the body of each type of event carries as its payload. */
export interface Payloads {
  /** Sent when a webhook is registered, which requires the answer 200 OK, and on demand. */
  ping: Record<string, never>
  /** The quarterly report of a project was submitted. */
  project_report_quarterly_submitted: { projectReport: { id: string; projectId: string; quarter: string; submitterId: string; submitterName: string } }
  /** The quarterly report of a project was approved. */
  project_report_quarterly_approved: { projectReport: { id: string; projectId: string; quarter: string; approverId: string; approverName: string; approvedDate: string } }
  /** The quarterly report of a project was still open after its due date. */
  project_report_quarterly_overdue: { projectReport: { id: string; projectId: string; quarter: string } }
  /** An access token has expired. */
  token_expired: { accessTokenId: string }
  /** Another webhook has become inactive. Sent only to webhooks that name this type. */
  webhook_inactive: { webhook: { id: string; url: string; name: string | null; statusReason: string } }
  /** A delivery to another webhook was dropped. Sent only to webhooks that name this type. */
  delivery_dropped: { delivery: { id: string; eventId: string; eventType: string; webhookId: string; webhookUrl: string; webhookName: string | null; attemptCount: number; reason: string; nextPingAt: string | null } }
}

/** The part of JSON Schema that the payloads need. */
export interface Shape {
  type?: string
  properties?: Record<string, Shape>
  required?: readonly string[]
  anyOf?: readonly Shape[]
}

export const payloadShapes: Record<keyof Payloads, Shape> = {
  ping: {"type":"object","properties":{},"required":[]},
  project_report_quarterly_submitted: {"type":"object","properties":{"projectReport":{"type":"object","properties":{"id":{"type":"string"},"projectId":{"type":"string"},"quarter":{"type":"string"},"submitterId":{"type":"string"},"submitterName":{"type":"string"}},"required":["id","projectId","quarter","submitterId","submitterName"]}},"required":["projectReport"]},
  project_report_quarterly_approved: {"type":"object","properties":{"projectReport":{"type":"object","properties":{"id":{"type":"string"},"projectId":{"type":"string"},"quarter":{"type":"string"},"approverId":{"type":"string"},"approverName":{"type":"string"},"approvedDate":{"type":"string"}},"required":["id","projectId","quarter","approverId","approverName","approvedDate"]}},"required":["projectReport"]},
  project_report_quarterly_overdue: {"type":"object","properties":{"projectReport":{"type":"object","properties":{"id":{"type":"string"},"projectId":{"type":"string"},"quarter":{"type":"string"}},"required":["id","projectId","quarter"]}},"required":["projectReport"]},
  token_expired: {"type":"object","properties":{"accessTokenId":{"type":"string"}},"required":["accessTokenId"]},
  webhook_inactive: {"type":"object","properties":{"webhook":{"type":"object","properties":{"id":{"type":"string"},"url":{"type":"string"},"name":{"anyOf":[{"type":"string"},{"type":"null"}]},"statusReason":{"type":"string"}},"required":["id","url","name","statusReason"]}},"required":["webhook"]},
  delivery_dropped: {"type":"object","properties":{"delivery":{"type":"object","properties":{"id":{"type":"string"},"eventId":{"type":"string"},"eventType":{"type":"string"},"webhookId":{"type":"string"},"webhookUrl":{"type":"string"},"webhookName":{"anyOf":[{"type":"string"},{"type":"null"}]},"attemptCount":{"type":"integer"},"reason":{"type":"string"},"nextPingAt":{"anyOf":[{"type":"string"},{"type":"null"}]}},"required":["id","eventId","eventType","webhookId","webhookUrl","webhookName","attemptCount","reason","nextPingAt"]}},"required":["delivery"]},
}
