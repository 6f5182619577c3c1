import { randomUUID } from 'node:crypto'
import type { DeliveryRequest } from '../../receiver/index.ts'
import { startIssuer } from '../cli/issuer.ts'

export const audience = 'https://receiver.example/hooks'

const reportId = '01930000-0000-7000-8000-000000000001'
export const overdue = { projectReport: { id: reportId, projectId: reportId, quarter: '2026-3' } }

type Delivery = {
  eventId?: string
  eventType?: string
  payload?: unknown
  audience?: string
  issuedAtSeconds?: number
  webhookId?: string
  /** The event's own id. */
  id?: string
}

/** A sender with keys of its own; what is not said of a delivery is as it should be. */
export const startSender = async () => {
  const issuer = await startIssuer()

  const request = async ({
    eventId = randomUUID(),
    eventType = 'project_report_quarterly_overdue',
    payload = eventType === 'ping' ? {} : overdue,
    audience: aud = audience,
    issuedAtSeconds = Math.floor(Date.now() / 1000),
    webhookId = randomUUID(),
    id,
  }: Delivery = {}) => {
    const eventTime = '2026-11-21T00:40:01.123+00:00'
    const body = JSON.stringify({ webhookId, eventId, eventType, eventTime, payload })
    const token = await issuer.token(aud, eventId, { issuedAtSeconds, body, ...(id && { sub: id }) })
    return { method: 'POST', authorization: `Bearer ${token}`, body }
  }

  /** Delivers over HTTP as the service does. */
  const deliver = async (url: string, delivery: Delivery = {}): Promise<Response> =>
    post(url, await request({ audience: url, ...delivery }))

  return { issuer, request, deliver }
}

export const post = (url: string, { authorization, body }: DeliveryRequest & { body: string }): Promise<Response> =>
  fetch(url, {
    method: 'POST',
    headers: { 'content-type': 'application/json', ...(authorization && { authorization }) },
    body,
  })
