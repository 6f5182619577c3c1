// The words that server and command line share, each list once. This file loads no library, because the command line
// reads it at every start. A test compares it with GraphQL's enums, the payload schemas and the completion.

/** The event types; `shared/events.ts` has their payloads. */
export const eventTypes = [
  'ping',
  'project_report_quarterly_submitted',
  'project_report_quarterly_approved',
  'project_report_quarterly_overdue',
  'token_expired',
  'webhook_inactive',
  'delivery_dropped',
] as const
export type EventType = (typeof eventTypes)[number]

/** Events about a webhook. They go only to webhooks that name them, never to the webhook concerned. */
export const noticeTypes = ['webhook_inactive', 'delivery_dropped'] as const satisfies EventType[]
export type NoticeType = (typeof noticeTypes)[number]

export const deliveryStatuses = ['pending', 'delivered', 'rejected', 'dropped', 'cancelled'] as const
export type DeliveryStatus = (typeof deliveryStatuses)[number]

/** What became of an event for a webhook. */
export const deliveryVerdicts = ['delivered', 'waiting', 'failed', 'cancelled', 'not_sent'] as const
export type DeliveryVerdict = (typeof deliveryVerdicts)[number]

export const webhookStatuses = ['active', 'inactive', 'disabled'] as const
export type WebhookStatus = (typeof webhookStatuses)[number]

/** The order that a webhook's deliveries keep. */
export const webhookOrderings = ['none', 'project'] as const
export type WebhookOrdering = (typeof webhookOrderings)[number]

/** Whether deliveries are sent to a webhook's URL, or taken by a client. */
export const webhookTransports = ['push', 'pull'] as const
export type WebhookTransport = (typeof webhookTransports)[number]
/** What signs a webhook's requests: the token alone, or Standard Webhooks as well. */
export const webhookSignings = ['token', 'standard'] as const
export type WebhookSigning = (typeof webhookSignings)[number]

/** What happens to what a webhook has missed: a client has it recovered, or it heals by itself. */
export const webhookRecoveries = ['on_demand', 'automatic'] as const
export type WebhookRecovery = (typeof webhookRecoveries)[number]

export const reportStatuses = ['open', 'submitted', 'approved'] as const
export type ReportStatus = (typeof reportStatuses)[number]

/** What an access token may do. */
export const permissions = ['read', 'webhooks', 'reports', 'admin'] as const
export type Permission = (typeof permissions)[number]

/** Why an attempt had no usable answer, each reason with its meaning. */
export const failureReasons = {
  connection_refused: 'Nobody listens at the address.',
  connection_reset: 'The connection was closed or reset before the headers of an answer were complete.',
  connect_timeout: 'No connection within its time limit.',
  timeout: 'No answer within the time limit of the attempt.',
  unreachable: 'No route to the address.',
  dns_error: 'No address that deliveries may be sent to was found for the host name.',
  tls_error: 'The certificate or the handshake of TLS failed.',
  address_not_allowed: 'The URL has an address that is neither public nor in an allowed network.',
  malformed_response: 'The answer is not HTTP, or its headers are too long.',
  invalid_url: 'The registered URL is not usable.',
  connection_failed: 'Any other failure; the detail says which.',
} as const
/** Why an attempt that was made had no usable answer. */
export type FailureReason = keyof typeof failureReasons
/** The failure of an attempt whose process ended before it recorded an answer. */
export const LOST = 'lost'

/** Why a request to the API is refused with 401. */
export const refusalReasons = [
  'missing',
  'malformed',
  'unknown_key',
  'bad_signature',
  'body_hash_mismatch',
  'clock_skew',
  'replayed',
  'expired',
  'revoked',
] as const
export type RefusalReason = (typeof refusalReasons)[number]

/** What a rehearsal does to a receiver, in the order in which `tidings rehearse` asks for it. */
export const rehearsalScenes = [
  'ping',
  'examples',
  'unknown_type',
  'more_in_payload',
  'clock_ahead',
  'nearly_expired',
  'slow',
  'late',
  'reordered',
  'redelivered',
  'spelt_otherwise',
  'no_token',
  'malformed',
  'other_algorithm',
  'unknown_key',
  'wrong_signature',
  'other_issuer',
  'other_audience',
  'expired',
  'from_the_future',
  'other_event',
  'other_body',
  'incomplete_body',
  'other_webhook',
  'other_method',
  'long_body',
  'replay',
  'retry',
  'ping_again',
  'lost_answer',
  'together',
  'refused_first',
] as const
export type RehearsalScene = (typeof rehearsalScenes)[number]

/** Every code that a GraphQL error carries in `extensions.code`. */
export const errorCodes = [
  'UNAUTHENTICATED',
  'FORBIDDEN',
  'NOT_FOUND',
  'BAD_USER_INPUT',
  'PING_FAILED',
  'CONFLICT',
  'RESULT_TOO_LARGE',
  'QUERY_TOO_COMPLEX',
  'RATE_LIMITED',
  'UNAVAILABLE',
  'INTERNAL_SERVER_ERROR',
] as const
export type ErrorCode = (typeof errorCodes)[number]

/** The mutations, which the audit log calls operations. */
export const mutations = [
  'createWebhook',
  'upsertWebhook',
  'pingWebhook',
  'rotateWebhookSecret',
  'deleteWebhook',
  'sendExample',
  'rehearse',
  'submitProjectReport',
  'approveProjectReport',
  'redeliver',
  'recoverDeliveries',
  'redeliverMany',
  'takeDeliveries',
  'answerDeliveries',
  'extendDeliveries',
  'upsertOrganisation',
  'upsertProject',
  'upsertUser',
  'createAccessToken',
  'revokeAccessToken',
  'rotateSigningKey',
] as const

/** The commands of operators that the audit log records. */
export const operatorCommands = [
  'server token',
  'server keys rotate',
  'server keys revoke',
  'server keys reseal',
  'server restored',
] as const
export type OperatorCommand = (typeof operatorCommands)[number]

/** The grants that the server's database user needs. */
export const RUNNING_GRANTS = ['SELECT', 'INSERT', 'UPDATE', 'DELETE'] as const
