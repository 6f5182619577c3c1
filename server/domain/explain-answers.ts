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
