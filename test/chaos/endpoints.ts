import type { EventType, WebhookOrdering } from '../../shared/vocabulary.ts'
import { portion } from './random.ts'

// The endpoints of a run: their expected events and their behaviour. What an endpoint does with a delivery depends only
// on the delivery's id and the number of its earlier arrivals.

export type Behaviour =
  | 'good'
  | 'slow'
  | 'failing'
  | 'exhausting'
  | 'resetting'
  | 'hanging'
  | 'flooding'
  | 'babbling'
  | 'trickling'
  | 'cutting'
  | 'refusing'
  | 'throttling'
  | 'redirecting'
  | 'rejecting'

/** An endpoint with its webhook's filters; projects and organisations by their number in the run. */
export type Endpoint = {
  behaviour: Behaviour
  events?: EventType[]
  organisations?: number[]
  projects?: number[]
  /** Whether it is sent the events of each project in their order. */
  ordering?: WebhookOrdering
}

/**
 * What is done with one request. A `reply` with a body of kind `endless`, `slow` or `cut` has its headers sent whole.
 */
export type Action =
  | {
      do: 'reply'
      status: number
      headers?: Record<string, string>
      delayMs?: number
      body?: 'endless' | 'slow' | 'cut'
    }
  | { do: 'hang' }
  | { do: 'reset'; afterBody: boolean }
  | { do: 'babble'; bytes: string }

export const PROJECTS = 20
export const ORGANISATIONS = 4
/** The organisation of a project. */
export const organisationOf = (project: number): number => project % ORGANISATIONS

/** Well-behaved endpoints get the most; each that misbehaves gets the events of one project. */
export const endpoints: readonly Endpoint[] = [
  { behaviour: 'good' },
  { behaviour: 'good', events: ['project_report_quarterly_submitted'], organisations: [0] },
  { behaviour: 'good', events: ['project_report_quarterly_approved', 'project_report_quarterly_overdue'] },
  { behaviour: 'slow', organisations: [1], projects: [0] },
  { behaviour: 'failing', projects: [1] },
  { behaviour: 'failing', projects: [2], organisations: [2] },
  { behaviour: 'exhausting', projects: [3] },
  { behaviour: 'resetting', projects: [4] },
  { behaviour: 'hanging', projects: [5] },
  { behaviour: 'flooding', projects: [6] },
  { behaviour: 'babbling', projects: [7] },
  { behaviour: 'trickling', projects: [8] },
  { behaviour: 'cutting', projects: [9] },
  { behaviour: 'refusing', projects: [10] },
  { behaviour: 'throttling', projects: [11] },
  { behaviour: 'redirecting', projects: [12] },
  { behaviour: 'rejecting', projects: [13] },
  // Ordered events must not come faster than they can be answered.
  { behaviour: 'good', organisations: [3], ordering: 'project' },
  { behaviour: 'resetting', events: ['project_report_quarterly_approved'], projects: [14, 15], ordering: 'project' },
]

/** Whether the webhook of an endpoint should have an event. */
export const wants = (
  { events, organisations, projects }: Endpoint,
  event: { type: EventType; organisation: number; project: number },
): boolean =>
  (events === undefined || events.includes(event.type)) &&
  ((organisations === undefined && projects === undefined) ||
    organisations?.includes(event.organisation) === true ||
    projects?.includes(event.project) === true)

const OK: Action = { do: 'reply', status: 200 }

/** What an endpoint does with a delivery that it has had `before` times. */
export const actionOf = (behaviour: Behaviour, deliveryId: string, before: number): Action => {
  const part = portion(deliveryId)
  const oneOf = <T>(...choices: T[]): T => choices[Math.floor(part * choices.length)]!
  switch (behaviour) {
    case 'good':
      return { do: 'reply', status: oneOf(200, 201, 202, 204) }
    case 'slow':
      return { ...OK, delayMs: Math.round(20 + part * 480) }
    case 'failing':
      return before < 1 + Math.floor(part * 3) ? { do: 'reply', status: oneOf(500, 502, 503, 599) } : OK
    case 'exhausting':
      return part < 0.3 ? { do: 'reply', status: 503 } : OK
    case 'resetting':
      return before === 0 ? { do: 'reset', afterBody: part < 0.5 } : OK
    case 'hanging':
      return before === 0 && part < 0.3 ? { do: 'hang' } : OK
    case 'flooding':
      return { do: 'reply', status: before === 0 && part < 0.5 ? 500 : 200, body: 'endless' }
    case 'babbling':
      return before === 0 ? { do: 'babble', bytes: oneOf(...NOT_HTTP) } : OK
    case 'trickling':
      return part < 0.3 ? { ...OK, body: 'slow' } : OK
    case 'cutting':
      return { do: 'reply', status: before === 0 && part < 0.5 ? 500 : 200, body: 'cut' }
    case 'refusing':
      return OK
    case 'throttling':
      return before === 0 && part < 0.05
        ? { do: 'reply', status: 429, headers: { 'retry-after': oneOf('1', '2', '3') } }
        : OK
    case 'redirecting':
      return before === 0 ? { do: 'reply', status: oneOf(301, 302, 307, 308), headers: { location: '/trap' } } : OK
    case 'rejecting':
      return part < 0.5 ? { do: 'reply', status: oneOf(400, 401, 410, 422) } : OK
  }
}

const NOT_HTTP = [
  'SSH-2.0-OpenSSH_9.2\r\n',
  '\u0000\u0001\u0002\u0003\u0004\r\n\r\n',
  'HTTP/1.1 what?\r\n\r\n',
  `HTTP/1.1 200 OK\r\nx-long: ${'x'.repeat(40_000)}\r\n\r\n`,
]
