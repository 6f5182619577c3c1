import { type FailureReason, failureReasons } from '../../shared/vocabulary.ts'
import type { Facts } from './explain-facts.ts'
import { PLAIN_URL, type Reason, reason } from './explain-words.ts'
import type { AttemptRow } from './resources.ts'

// What the answers of an endpoint say, and what else is known that may have led to them.

/** How the last attempt was answered, in words. */
export const answerOf = (attempt: AttemptRow | undefined): string => {
  if (attempt === undefined) return 'gave no answer'
  if (attempt.status_code !== null) return `answered ${attempt.status_code}`
  const failure = attempt.failure ?? 'unknown'
  const meaning = isFailure(failure) ? `: ${failureReasons[failure].replace(/\.$/, '')}` : ''
  return `gave no answer (${failure.replaceAll('_', ' ')}${meaning})`
}

const isFailure = (failure: string): failure is FailureReason => failure in failureReasons

/** How often the attempts before were answered in the same way. */
export const runOf = (attempts: AttemptRow[]): string => {
  const last = attempts.at(-1)
  const alike = attempts.filter(each => each.status_code === last?.status_code && each.failure === last?.failure)
  return attempts.length < 2 ? '' : `, ${alike.length} of ${attempts.length} attempts`
}

/** What a receiver or a gateway that refuses a request may have checked besides the token. */
export const checkedBeside = ({ webhook, headers, attempts }: Facts): Reason[] => {
  const status = attempts.at(-1)?.status_code ?? 0
  if (![401, 403, 407].includes(status)) return []
  const found: Reason[] = []
  if (webhook.signing === 'standard') {
    const message =
      'The webhook signs by Standard Webhooks too: a receiver that checks this must have its present secret. ' +
      `tidings webhooks rotate-secret ${webhook.id} makes a new one.`
    found.push(reason('checks_secret', message))
  }
  if (headers.length > 0) {
    const message =
      `Each request carries static headers (${headers.join(', ')}): a gateway may have refused their values. ` +
      `tidings webhooks update ${webhook.id} --headers-file FILE gives it others.`
    found.push(reason('checks_headers', message))
  }
  return found
}

/** The code of an error in an answer's body, `{"error": "audience"}`; undefined if it has none. */
export const errorCodeIn = (body: string | null): string | undefined =>
  /^\s*\{\s*"error"\s*:\s*"([a-z][a-z0-9_]{0,39})"/.exec(body ?? '')?.[1]

/** What it comes to that a receiver refuses a token for one of its checks (`receiver/fault.ts`). */
const CHECKS: Record<string, (url: string) => string> = {
  audience: url => `it expects the token to be for another URL than ${url}, which must be written there exactly so`,
  issuer: () => 'it expects tokens of another server',
  key: () => 'it does not find the key that signed: it has the keys of another server, or has not fetched them lately',
  expiry: () => 'the token had expired: its clock is ahead, or the request waited long before it was checked',
  issued_at: () => 'the token is of a time to come: its clock is behind',
  signature: () => 'the signature is not by the key that it has',
  body_digest: () => 'the body is another than was signed: something before it has changed it, such as a body parser',
  webhook: () => 'it accepts deliveries of other webhooks only',
  replay: () => 'it takes the delivery for one that it has had before',
  token_missing: () => 'no token came: a proxy before it may have removed the header Authorization',
}

/** What a receiver that refuses a token says that it has checked. */
export const failedCheck = ({ attempts, urlThen, webhook }: Facts): Reason[] => {
  const code = errorCodeIn(attempts.at(-1)?.response ?? null)
  const meaning = code === undefined ? undefined : CHECKS[code]?.(urlThen ?? webhook.url)
  return meaning === undefined ? [] : [reason('failed_check', `The receiver says “${code}”: ${meaning}.`)]
}

/** That a web page answered in the receiver's place. Its type says little: many receivers answer `OK` as HTML. */
export const webPage = ({ attempts }: Facts): Reason[] => {
  if (!/^\s*<(!doctype\s+html|html)\b/i.test(attempts.at(-1)?.response ?? '')) return []
  const message =
    'A web page answered: something before the receiver, such as a login or a firewall, may have taken it.'
  return [reason('web_page', message)]
}

/** The URL that the last answer redirects to, if it is one. */
const redirectedTo = ({ redirect, attempts, urlThen }: Facts): string | undefined => {
  const status = attempts.at(-1)?.status_code ?? 0
  return status < 300 || status > 399 || !redirect || !urlThen ? undefined : URL.parse(redirect, urlThen)?.href
}

/** That an endpoint redirects, and the command that follows it, unless the webhook has another URL since. */
export const redirection = (facts: Facts): { reasons: Reason[]; next?: string } => {
  const to = redirectedTo(facts)
  if (to === undefined || facts.urlThen !== facts.webhook.url || to === facts.webhook.url) return { reasons: [] }
  const message = `It redirects to ${to}. Redirects are not followed: give the webhook the URL of its receiver.`
  const reasons = [reason('redirected', message)]
  if (!PLAIN_URL.test(to)) return { reasons }
  return { reasons, next: `tidings webhooks update ${facts.webhook.id} --endpoint ${to}` }
}
