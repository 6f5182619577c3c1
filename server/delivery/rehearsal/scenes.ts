import { generateKeyPairSync, type KeyObject } from 'node:crypto'
import { TOKEN_LIFETIME_SECONDS } from '../../../shared/delivery-token.ts'
import { events } from '../../../shared/events.ts'
import type { RehearsalScene } from '../../../shared/vocabulary.ts'
import { type DeliveryVector, deliveryVectors, vector } from './delivery-vectors.ts'
import { digestOf } from './mint.ts'

/** A request before it is sent. A scene changes some of it; the token is signed afterwards. */
export type Draft = {
  claims: Record<string, unknown>
  /** What signs. */
  key: KeyObject
  body: string
  pace: Pace
}

/**
 * How the body is sent: at once; with a pause in its middle; its last byte at the same time as that of the scene's
 * other requests; or at once, and then the sender hangs up.
 */
export type Pace = 'whole' | 'paused' | 'together' | 'lost'

type Change = (draft: Draft) => Partial<Draft>

/** One request of a scene. */
export type Step = {
  /** Steps with the same number are the same delivery. */
  delivery?: number
  /** Its event, where another delivery of the scene is of the same: by default one of its own. */
  event?: number
  eventType?: string
  payload?: object
  /** Seconds from now to the event. */
  eventOffset?: number
  /** Whether the very request of the step before is sent again. */
  again?: true
  /** The pause before it, in milliseconds. */
  afterMs?: number
  /** Whether it is left out unless the step before was answered 503. */
  ifUnavailable?: true
  change?: Change
  /** What makes it, in place of all that. */
  vector?: DeliveryVector
}

const TYPE = 'project_report_quarterly_submitted'
export const TYPICAL = { eventType: TYPE, payload: events[TYPE].example } as const
/** A type of which no handler knows: what is refused for its audience or its time is of no use to others either. */
const TOMORROW = { eventType: 'rehearsal_of_tomorrow', payload: { tomorrow: true } } as const
const EXAMPLES = [
  TYPE,
  'project_report_quarterly_approved',
  'project_report_quarterly_overdue',
  'token_expired',
] as const

const step = (change?: Change): Step => (change === undefined ? {} : { change })
const claims =
  (changed: (claims: Record<string, unknown>) => object): Change =>
  draft => ({ claims: { ...draft.claims, ...changed(draft.claims) } })
/** Another body, with its digest in the token. */
const telling =
  (changed: (body: { webhookId: string }) => object): Change =>
  draft => {
    const envelope = JSON.parse(draft.body)
    const body = JSON.stringify({ ...envelope, ...changed(envelope) })
    return { body, claims: { ...draft.claims, body_sha256: digestOf(body) } }
  }
/** The token as if it was made that many seconds from now. */
const madeAt = (seconds: number): Change =>
  claims(({ iat, exp }) => ({ iat: Number(iat) + seconds, exp: Number(exp) + seconds }))
const paced =
  (pace: Pace): Change =>
  () => ({ pace })

/** How many requests of one delivery come at once, and how many deliveries do so. */
const AT_ONCE = 5
const ROUNDS = 8
const THREE_DAYS_SECONDS = 3 * 86_400
const EXPIRED_SECONDS = -TOKEN_LIFETIME_SECONDS - 120
const EXPIRED = madeAt(EXPIRED_SECONDS)
const BY_OTHER_KEY = (): Partial<Draft> => ({ key: generateKeyPairSync('ed25519').privateKey })

/** In which scene a vector is sent, by the check that it fails. */
const SCENES: Record<string, RehearsalScene> = {
  ok: 'spelt_otherwise',
  token_missing: 'no_token',
  format: 'malformed',
  algorithm: 'other_algorithm',
  key: 'unknown_key',
  signature: 'wrong_signature',
  issuer: 'other_issuer',
  audience: 'other_audience',
  expiry: 'expired',
  issued_at: 'from_the_future',
  jti: 'other_event',
  body_digest: 'other_body',
  body: 'incomplete_body',
  method: 'other_method',
  body_too_large: 'long_body',
}
/**
 * Vectors that cannot be sent: they need a clock that stands still, a header of a length that servers of HTTP limit by
 * themselves, or a key that is not published.
 */
const NOT_SENT = new RegExp(
  [
    /just expired|expired a second ago|a minute ahead|last second|for a minute yet|in the future|16 KiB|of a length/,
    /shares its kid/,
  ]
    .map(({ source }) => source)
    .join('|'),
)
/** Vectors that are what the first scenes send. */
const SENT_BEFORE = /^a token as jose makes it$|type that came later|more in its payload|^a ping$/
/** What this server never sends: whoever refuses it loses nothing. */
const NEVER_SENT = /as older servers|empty sub|of 1 MiB/

const sceneOf = ({ name, code }: DeliveryVector): RehearsalScene | undefined => {
  if (NOT_SENT.test(name) || SENT_BEFORE.test(name)) return undefined
  return name.includes('not valid') && code !== 'ok' ? 'expired' : SCENES[code]
}

/** The last two are in place of vectors that need a clock that stands still. */
const ALL = [
  ...deliveryVectors,
  vector('a token that expired two minutes ago', 'expiry', mint => ({
    authorization: `Bearer ${mint.retryToken(EXPIRED_SECONDS)}`,
  })),
  vector('a token of a clock four minutes ahead', 'issued_at', mint => ({
    // It expires no later than any other.
    authorization: `Bearer ${mint.withClaims({ iat: mint.iat + TOKEN_LIFETIME_SECONDS - 60 })}`,
  })),
]

/** The vectors of a scene. */
const vectorsOf = (scene: RehearsalScene, common: Partial<Step> = {}): Step[] =>
  ALL.filter(each => sceneOf(each) === scene).map(each => {
    const isAdvisable = each.isAdvisable || NEVER_SENT.test(each.name)
    return {
      eventType: 'token_expired',
      payload: events.token_expired.example,
      ...common,
      vector: { ...each, isAdvisable },
    }
  })

/** The body's `webhookId`, made from the webhook's own. */
const OTHER_WEBHOOKS: ((own: string) => unknown)[] = [
  () => crypto.randomUUID(),
  own => own.slice(0, -1),
  own => `${own}0`,
  own => own.toUpperCase(),
  own => [own],
  own => ({ id: own }),
  () => null,
  () => '',
  () => 7,
  () => undefined,
]

export const scenes: Record<RehearsalScene, Step[]> = {
  ping: [{ eventType: 'ping', payload: {} }],
  examples: EXAMPLES.map((eventType, delivery) => ({ delivery, eventType, payload: events[eventType].example })),
  unknown_type: [TOMORROW],
  more_in_payload: [{ payload: { ...events[TYPE].example, tomorrow: [1] } }],
  clock_ahead: [step(madeAt(30))],
  nearly_expired: [step(madeAt(15 - TOKEN_LIFETIME_SECONDS))],
  slow: [step(paced('paused'))],
  late: [{ eventOffset: -THREE_DAYS_SECONDS }],
  reordered: [
    { delivery: 0, eventOffset: 0 },
    { delivery: 1, eventOffset: -60 },
  ],
  redelivered: [
    { delivery: 0, event: 0 },
    { delivery: 1, event: 0 },
  ],
  spelt_otherwise: vectorsOf('spelt_otherwise'),
  no_token: vectorsOf('no_token'),
  malformed: vectorsOf('malformed'),
  other_algorithm: vectorsOf('other_algorithm'),
  unknown_key: vectorsOf('unknown_key'),
  wrong_signature: vectorsOf('wrong_signature'),
  other_issuer: vectorsOf('other_issuer'),
  other_audience: vectorsOf('other_audience', TOMORROW),
  expired: vectorsOf('expired', TOMORROW),
  from_the_future: vectorsOf('from_the_future'),
  other_event: vectorsOf('other_event'),
  other_body: vectorsOf('other_body'),
  incomplete_body: vectorsOf('incomplete_body'),
  other_webhook: OTHER_WEBHOOKS.map((other, delivery) => ({
    delivery,
    change: telling(({ webhookId }) => ({ webhookId: other(webhookId) })),
  })),
  other_method: vectorsOf('other_method'),
  long_body: vectorsOf('long_body'),
  replay: [step(), { again: true }],
  retry: [step(madeAt(-5)), step()],
  ping_again: [{ eventType: 'ping', payload: {} }, { again: true }],
  lost_answer: [step(paced('lost')), { afterMs: 500 }, { afterMs: 2000, ifUnavailable: true }],
  together: Array.from({ length: ROUNDS * AT_ONCE }, (_, nth) => ({
    delivery: Math.floor(nth / AT_ONCE),
    ...(nth % AT_ONCE === 0 ? step(paced('together')) : { again: true as const }),
  })),
  refused_first: [step(BY_OTHER_KEY), step(EXPIRED), step()],
}
