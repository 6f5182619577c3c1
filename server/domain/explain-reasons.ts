import { toIso } from '../../shared/time.ts'
import { eventTypes, noticeTypes } from '../../shared/vocabulary.ts'
import { answerOf, checkedBeside, failedCheck, redirection, runOf, webPage } from './explain-answers.ts'
import type { Facts } from './explain-facts.ts'
import { withHealing } from './explain-healing.ts'
import { type Explained, PLAIN_URL, type Reason, reason, recoverSince } from './explain-words.ts'
import { epochTimeOf } from './pull-time.ts'
import type { AttemptRow, DeliveryRow } from './resources.ts'
import type { VersionRow } from './webhook-versions.ts'

/** The reasons, the most decisive first. Pure: the same facts have the same reasons. */
export const reasonsFor = (facts: Facts): Explained => {
  const last = facts.sent.at(-1)
  if (last === undefined) return withHealing(facts, notSent(facts))
  const explained = withHealing(facts, EXPLAIN[last.status](facts, last))
  const beside = [...webPage(facts), ...formerUrl(facts), ...sentAgain(facts, last)]
  return { ...explained, reasons: [...explained.reasons, ...beside] }
}

type Explain = (facts: Facts, last: DeliveryRow) => Explained

const enable = ({ webhook }: Facts): string => `tidings webhooks enable ${webhook.id}`
const recover = ({ webhook }: Facts, since: number): string => recoverSince(webhook.id, Number(since))
const redeliver = ({ id }: DeliveryRow): string => `tidings deliveries redeliver ${id}`

/** ` by “ci”`, where the caller may know it. */
const by = ({ names }: Facts, change: VersionRow | undefined): string => {
  const name = change?.access_token_id ? names.get(change.access_token_id) : undefined
  return name === undefined ? '' : ` by “${name}”`
}

/** That it was sent to another URL than the webhook's present one. */
const formerUrl = ({ urlThen, webhook }: Facts): Reason[] => {
  if (urlThen === undefined || urlThen === webhook.url) return []
  const message = `It was sent to ${urlThen}, the webhook's URL at that time; now it is ${webhook.url}.`
  return [reason('former_url', message)]
}

/** That the webhook has had the event before. */
const sentAgain = ({ sent }: Facts, last: DeliveryRow): Reason[] => {
  const before = sent.length - 1
  if (before === 0) return []
  const times = before === 1 ? 'once before' : `${before} times before`
  const message = `The event was queued for this webhook ${times}; this is its last delivery.`
  return [reason('sent_again', message, last.created_at)]
}

const delivered: Explain = ({ attempts }, last) => ({
  verdict: 'delivered',
  reasons: [
    reason(
      'acknowledged',
      `The endpoint ${answerOf(attempts.at(-1))}. If the receiver has lost it since, send it again.`,
      last.finished_at,
    ),
  ],
  next: redeliver(last),
})

const rejected: Explain = (facts, last) => {
  const attempt = facts.attempts.at(-1)
  if (last.handled_before) {
    const message = 'The receiver had handled it at an earlier attempt, and refused this one as a replay.'
    return { verdict: 'delivered', reasons: [reason('handled_before', message, last.finished_at)], next: null }
  }
  const isToken = attempt?.status_code === 401
  const message = isToken
    ? 'The endpoint answered 401: it did not accept the token. Check it there with tidings verify, then send it again.'
    : `The endpoint ${answerOf(attempt)}, which refuses the event for good. When that is mended there, send it again.`
  const reasons = [
    reason(isToken ? 'token_refused' : 'refused', message, last.finished_at),
    ...(isToken ? failedCheck(facts) : []),
    ...checkedBeside(facts),
  ]
  return { verdict: 'failed', ...whenActive(facts, reasons, redeliver(last)) }
}

const dropped: Explain = (facts, last) => {
  const attempt = facts.attempts.at(-1)
  const isThrottled = attempt?.status_code === 429
  const message = isThrottled
    ? 'The endpoint asked to wait (429) for three days.'
    : `The endpoint ${answerOf(attempt)}${runOf(facts.attempts)}, and the last retry has passed.`
  const redirected = redirection(facts)
  const reasons = [
    reason(isThrottled ? 'throttled_too_long' : 'retries_exhausted', message, last.finished_at),
    ...redirected.reasons,
  ]
  return { verdict: 'failed', ...whenActive(facts, reasons, redirected.next ?? redeliver(last)) }
}

/** Nothing can be sent again to a webhook that is not active. */
const whenActive = (facts: Facts, reasons: Reason[], next: string | null): Pick<Explained, 'reasons' | 'next'> => {
  const { conditions } = facts
  if (!conditions.existing) return { reasons: [...reasons, isDeleted(facts)], next: createdAnew(facts) }
  if (conditions.active) return { reasons, next }
  return { reasons: [...reasons, notActive(facts)], next: enable(facts) }
}

const isDeleted = ({ webhook }: Facts): Reason =>
  reason('webhook_deleted', 'The webhook is deleted, and receives nothing any more.', webhook.deleted_at)

const notActive = (facts: Facts): Reason => {
  const { status, status_reason, updated_at } = facts.webhook
  const at = facts.since?.until_at ?? updated_at
  if (status === 'inactive') {
    const why = (status_reason ?? 'its endpoint answered 429 without a time').replace(/\.$/, '')
    const message = `The webhook is inactive: ${why}. Nothing is lost: enable it, then recover what it missed.`
    return reason('webhook_inactive', message, at)
  }
  const message = `The webhook is disabled${by(facts, facts.since)}. Enable it, then recover what it missed.`
  return reason('webhook_disabled', message, at)
}

const cancelled: Explain = (facts, last) => {
  const { conditions, ender } = facts
  const unseen = sightOf(facts)
  if (conditions.existing && conditions.active && unseen.length > 0) {
    return { verdict: 'cancelled', reasons: unseen, next: watching(facts) }
  }
  const message = `It was cancelled before it was acknowledged: ${endOf(facts)}.`
  const reasons = [reason('cancelled', message, ender?.until_at ?? last.finished_at)]
  return { verdict: 'cancelled', ...whenActive(facts, reasons, recover(facts, facts.event.created_at)) }
}

/** The change that cancelled it. */
const endOf = (facts: Facts): string => {
  const { ender } = facts
  if (ender === undefined) return 'the webhook left the status active, or was changed'
  if (ender.to === 'inactive') return 'the webhook became inactive, because its endpoint answered 429 without a time'
  if (ender.to === 'disabled') return `the webhook was disabled${by(facts, ender)}`
  return `the webhook was changed${by(facts, ender)}, and no longer asked for it`
}

/** A delivery that is due is late after this. */
const LATE_MS = 20_000

const pending: Explain = (facts, last) => {
  const { webhook, conditions, attempts, turnOf, queued, now } = facts
  const waits = (reasons: Reason[], next: string | null = null): Explained => ({ verdict: 'waiting', reasons, next })
  if (!conditions.existing || !conditions.active) {
    const reasons = [conditions.existing ? notActive(facts) : isDeleted(facts)]
    return waits(reasons, conditions.existing ? enable(facts) : createdAnew(facts))
  }
  if (queued?.isInLine) {
    const first = turnOf === undefined ? 'an earlier delivery' : `delivery ${turnOf}`
    const message = `It waits for ${first}, which precedes it in the order of its project.`
    return waits([reason('waits_for_turn', message)], turnOf ? `tidings why ${webhook.id} ${turnOf}` : null)
  }
  const due = queued?.dueAt ?? last.next_attempt_at ?? now
  const isPulled = webhook.transport === 'pull'
  if (isPulled && queued?.isLeased) {
    return waits([reason('taken', 'A client has taken it and not answered yet.', last.created_at)])
  }
  const failing = attempts.length === 0 ? [] : [failure(attempts)]
  if (!isPulled && !facts.isSending) {
    const message = 'No server process with the role “delivery” runs, so nothing is sent. Nothing is lost: start one.'
    return waits([reason('no_sender', message, due), ...failing], 'tidings server start')
  }
  const heldUntil = epochTimeOf(webhook.held_until ?? 0)
  if (heldUntil > now) {
    const [who, nothing] = isPulled ? ['A client', 'nothing is taken from'] : ['The endpoint', 'nothing is sent to']
    const message = `${who} asked to wait (429): until then ${nothing} this webhook, and nothing is lost.`
    return waits([reason('throttled', message, heldUntil), ...failing])
  }
  if (isPulled && (due <= now || attempts.length === 0)) {
    const message = 'It waits for a client to take it: the webhook is pulled, and nothing is sent to it.'
    const next = `tidings deliveries take ${webhook.id}`
    return waits([reason('waits_for_puller', message, last.created_at), ...failing], next)
  }
  if (due > now && queued?.isLeased) {
    const message = 'It is being sent now. If the process that sends it has died, another sends it at this time.'
    return waits([reason('under_way', message, due), ...failing])
  }
  if (attempts.length > 0 && due > now) {
    const message = `Attempt ${attempts.length + 1} follows at this time by itself; nothing is lost.`
    const redirected = redirection(facts)
    return waits(
      [...failing, ...redirected.reasons, reason('waits_for_retry', message, due)],
      redirected.next ?? `tidings webhooks ping ${webhook.id}`,
    )
  }
  if (due > now - LATE_MS) {
    const message = queued?.isRecovered ? 'It is queued, behind new deliveries.' : 'It is queued, and sent in a moment.'
    return waits([reason('queued', message, due), ...failing])
  }
  const message =
    'It is due and has not been sent: more is queued for its endpoint or its access token than may be sent at once.'
  return waits([reason('late', message, due), ...failing], 'tidings doctor')
}

const failure = (attempts: AttemptRow[]): Reason =>
  reason('failing', `The endpoint ${answerOf(attempts.at(-1))}${runOf(attempts)}.`, attempts.at(-1)!.started_at)

const EXPLAIN: Record<DeliveryRow['status'], Explain> = { pending, delivered, rejected, dropped, cancelled }

/** The reasons of the sight of the webhook's token. */
const sightOf = ({ conditions, event, webhook }: Facts): Reason[] => {
  if (!conditions.undirected) return []
  const token = `the access token that created the webhook (${webhook.access_token_id})`
  return [
    ...(conditions.organisation
      ? []
      : [reason('out_of_sight', `Out of sight: ${token} does not see the event's organisation.`)]),
    ...(conditions.project
      ? []
      : [
          reason(
            'project_out_of_sight',
            `Out of sight: project ${event.project_id} is of an organisation that ${token} does not see.`,
          ),
        ]),
    ...(conditions.subject
      ? []
      : [reason('subject_out_of_sight', `Out of sight: the event is about a webhook that ${token} does not see.`)]),
  ]
}

/** Why there is no delivery: the conditions that are not true now, or that were not true then. */
const notSent = (facts: Facts): Explained => {
  const { conditions, webhook, event } = facts
  const explain = (reasons: Reason[], next: string | null): Explained => ({ verdict: 'not_sent', reasons, next })
  if (!conditions.undirected) {
    const message = `A ${event.type === 'ping' ? 'ping' : 'made-up example'} goes only to the webhook it was asked for.`
    const next = `tidings ${event.type === 'ping' ? 'webhooks ping' : `trigger ${event.type} --webhook`} ${webhook.id}`
    return explain([reason('on_demand', message, event.created_at)], next)
  }
  if (!conditions.existing) return explain([isDeleted(facts)], createdAnew(facts))
  if (!conditions.another) {
    const message = 'The event is about this webhook, and a webhook receives nothing about itself.'
    return explain([reason('about_itself', message)], null)
  }
  const filters = filtersOf(facts)
  const lasting = [...filters.map(({ reason }) => reason), ...sightOf(facts)]
  if (!conditions.created) {
    const message = 'The event happened before the webhook was created, and a webhook receives no earlier events.'
    return explain(
      [reason('created_after', message, webhook.created_at), ...lasting],
      `tidings events show ${event.id}`,
    )
  }
  const idle = conditions.active ? [] : [notActive(facts)]
  const past = pastReasons(facts)
  if (lasting.length > 0) return explain([...lasting, ...idle, ...past], filters[0]?.mend ?? watching(facts))
  const isTold = past.length > 0 || (idle.length > 0 && facts.then.status === webhook.status)
  const causes = [...idle, ...past, ...(isTold ? [] : [missedThen(facts)])]
  return explain(causes, conditions.active ? recover(facts, event.created_at) : enable(facts))
}

/** Why the webhook, as it was when the event happened, did not get it; without what is so still. */
const pastReasons = (facts: Facts): Reason[] => {
  const { then, webhook, event, conditions } = facts
  const found: Reason[] = []
  const again = ' Recover what it missed.'
  if (then.status !== 'active' && then.ended !== undefined) {
    const why =
      then.status === 'inactive' ? ', because its endpoint had answered 429 without a time' : by(facts, then.began)
    const until = `until ${toIso(Number(then.ended.until_at))}${by(facts, then.ended)}`
    const message = `When the event happened the webhook was ${then.status}${why}, ${until}.${again}`
    found.push(reason(`${then.status}_then`, message, then.began?.until_at ?? null))
  }
  const types = then.events?.list
  const isNamed = types?.includes(event.type) ?? true
  const isWanted = types?.length === 0 ? event.about_webhook_id === null : isNamed
  if (!isWanted && conditions.type) {
    const message =
      `When the event happened the webhook asked for ${asked(types ?? [])}; the event is ` + `${event.type}.${again}`
    found.push(reason('type_not_wanted_then', message, webhook.updated_at))
  }
  if (then.chooses === false && conditions.scope) {
    const message =
      'When the event happened the webhook was restricted to other organisations or projects; that was changed ' +
      `since.${again}`
    found.push(reason('not_chosen_then', message, webhook.updated_at))
  }
  return found
}

const movedOf = ({ event }: Facts, { organisationId, at }: NonNullable<Facts['moved']>): Reason => {
  const other = at === undefined ? 'it is now' : 'another event of it is'
  const message =
    `Project ${event.project_id} has moved between organisations: ${other} of organisation ` + `${organisationId}.`
  return reason('project_moved', message, at)
}

/** Another webhook, of the caller's token, for what the token of this one does not see. */
const watching = ({ webhook, event, conditions }: Facts): string | null => {
  if (conditions.organisation && conditions.project) return null
  const { organisation_id: organisation, project_id: project, type } = event
  const to = webhook.transport === 'pull' ? '--transport pull' : webhook.url
  if (webhook.transport === 'push' && !PLAIN_URL.test(webhook.url)) return null
  const of =
    conditions.organisation && project ? `--project ${project}` : organisation && `--organisation ${organisation}`
  return of ? `tidings webhooks create ${to} --events ${type} ${of}` : null
}

/** The command that creates a deleted webhook anew, as far as one can write it down. */
const createdAnew = ({ webhook, types, chosen }: Facts): string | null => {
  const { organisations, projects, areMore } = chosen
  if (areMore || organisations.length + projects.length > MOST_CHOSEN) return null
  if (webhook.transport === 'push' && !PLAIN_URL.test(webhook.url)) return null
  return [
    `tidings webhooks create ${webhook.transport === 'pull' ? '--transport pull' : webhook.url}`,
    ...(types.length > 0 ? [`--events ${types.join(',')}`] : []),
    ...organisations.map(id => `--organisation ${id}`),
    ...projects.map(id => `--project ${id}`),
  ].join(' ')
}

/** The filters that leave the event out, each with the change that lets it in. */
const filtersOf = (facts: Facts): { reason: Reason; mend: string | null }[] => {
  const { conditions, webhook, event, types, chosen } = facts
  const update = `tidings webhooks update ${webhook.id}`
  const then = 'Change that, then recover what it missed.'
  const found: { reason: Reason; mend: string | null }[] = []
  if (!conditions.type) {
    const message =
      `The type is not asked for: the webhook asks for ${asked(types)}; the event is ` + `${event.type}. ${then}`
    const named = types.length === 0 ? USUAL_TYPES : types
    const mend = `${update} --events ${[...named, event.type].join(',')}`
    found.push({ reason: reason('type_not_wanted', message), mend })
  }
  if (!conditions.scope) {
    const of = event.organisation_id === null ? 'no organisation of its own' : `organisation ${event.organisation_id}`
    const project = event.project_id === null ? '' : `, project ${event.project_id}`
    const message =
      `The webhook is restricted to ${inWords(chosen)}; the event ` +
      `is of ${of}${project}, which is not among them. ${then}`
    found.push({ reason: reason('not_chosen', message), mend: choosing(update, facts) })
    if (facts.moved) found.push({ reason: movedOf(facts, facts.moved), mend: null })
  }
  return found
}

/** What a webhook without types asks for. */
const USUAL_TYPES = eventTypes.filter(type => type !== 'ping' && !noticeTypes.some(notice => notice === type))

const asked = (types: string[]): string =>
  types.length === 0 ? 'all types but those about webhooks, which must be named' : types.join(', ')

/** More would make a command that nobody reads. */
const MOST_CHOSEN = 10

/** The command that adds the event's project, or else its organisation, to what the webhook names. */
const choosing = (update: string, { chosen, event, webhook }: Facts): string => {
  const ids = (option: string, all: string[], added: string | null) =>
    added === null ? undefined : [...all, added].map(id => ` --${option} ${id}`).join('')
  const project = chosen.projects.length > 0 ? ids('project', chosen.projects, event.project_id) : undefined
  const added = project ?? ids('organisation', chosen.organisations, event.organisation_id)
  const isLong = chosen.organisations.length + chosen.projects.length > MOST_CHOSEN
  // A list replaces the one before, with those in it that the caller does not see.
  return added === undefined || chosen.areMore || isLong ? `tidings webhooks show ${webhook.id}` : `${update}${added}`
}

/** `1 organisation and 2 projects`, without those that are none, of what the caller sees. */
const inWords = ({ organisations, projects, areMore }: Facts['chosen']): string =>
  [
    ...Object.entries({ organisation: organisations.length, project: projects.length })
      .filter(([, number]) => number > 0)
      .map(([noun, number]) => `${number} ${noun}${number === 1 ? '' : 's'}`),
    ...(areMore ? ['others that are out of your sight'] : []),
  ].join(' and ')

/** As the webhook is now it would receive the event, and it was not queued. */
const missedThen = ({ webhook, event, around }: Facts): Reason => {
  const isQueued = (at: number | undefined) => (at === undefined ? 'none' : `one at ${toIso(at)}`)
  const changed =
    Number(webhook.updated_at) > Number(event.created_at) ? `, last at ${toIso(Number(webhook.updated_at))}` : ''
  const message =
    'When the event happened the webhook was not active, asked for something else, or its access token did not see ' +
    `the event; it was changed since${changed}. Queued for it before the event: ${isQueued(around.before)}, ` +
    `after it: ${isQueued(around.after)}. As it is now it would receive the event: recover what it missed.`
  return reason('not_active_then', message, event.created_at)
}
