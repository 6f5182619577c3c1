import type { RehearsalAnswer } from '../../shared/rehearsal.ts'
import type { RehearsalScene } from '../../shared/vocabulary.ts'

/** What a receiver must do with a scene. */
export type Kind = 'accept' | 'refuse' | 'once'

/** A scene judged: `note` may be intended, `problem` is not. */
export interface Grade {
  status: 'ok' | 'note' | 'problem'
  found: string
  /** What to mend. */
  next: string | null
}

export interface Scene {
  kind: Kind
  /** What was sent, in a few words. */
  name: string
  judge(answers: readonly RehearsalAnswer[]): Grade
}

const ok = (found: string): Grade => ({ status: 'ok', found, next: null })
const note = (found: string, next: string): Grade => ({ status: 'note', found, next })
const problem = (found: string, next: string): Grade => ({ status: 'problem', found, next })

/** Tidings waits 15 s, and a receiver should give up before that. */
const LATE_MS = 13_500

const isDone = ({ statusCode }: RehearsalAnswer): boolean =>
  statusCode !== null && statusCode >= 200 && statusCode < 300
const isRefused = ({ statusCode }: RehearsalAnswer): boolean =>
  statusCode !== null && statusCode >= 400 && statusCode < 500 && statusCode !== 429

const said = ({ statusCode, failure, detail, challenge }: RehearsalAnswer): string => {
  if (statusCode === null) return `no answer: ${detail ?? failure}`
  const code = /error_description="([^"]{1,40})"/.exec(challenge ?? '')?.[1]
  return code === undefined ? `answered ${statusCode}` : `answered ${statusCode} (${code})`
}
const allSaid = (answers: readonly RehearsalAnswer[]): string => answers.map(said).join(', then ')

/** What follows from an answer that is wrong whatever was asked. */
const wrongInAnyCase = (answer: RehearsalAnswer): string | undefined => {
  const { statusCode, failure, durationMs } = answer
  if (failure === 'timeout' || (durationMs > LATE_MS && !isDone(answer)))
    return 'Answer within 15 s: put longer work into a queue of your own, and answer 503 at 14 s.'
  if (failure !== null)
    return 'Answer every request, also one that you refuse: without an answer it comes eleven times.'
  if (statusCode === 429)
    return 'Answer 429 only with Retry-After, and only to ask for a pause: without it, it ends the webhook.'
  if (statusCode! < 200 || (statusCode! >= 300 && statusCode! < 400)) {
    return 'Tidings follows no redirect: answer at the registered URL itself, with or without the slash at its end.'
  }
  return undefined
}

const isSent = ({ failure }: RehearsalAnswer): boolean => failure !== 'not_sent'

/** Some of a scene's requests: by their names, unless they are all. */
const naming = (some: readonly RehearsalAnswer[], all: readonly RehearsalAnswer[], what: string): string => {
  if (all.length === 1) return what
  if (some.length === all.length) return `${what}: all ${all.length}`
  const names = some.map(({ vector, eventType }) => vector?.replace(/^a token /, '') ?? eventType)
  return `${what}: ${some.length} of ${all.length}: ${names.join('; ')}`
}
const COUNTED_FROM = 4
/** What was answered, counted where there is much. */
const summed = (answers: readonly RehearsalAnswer[]): string => {
  if (answers.length < COUNTED_FROM) return allSaid(answers)
  const sums = Map.groupBy(answers, ({ statusCode, failure }) => String(statusCode ?? failure))
  return [...sums].map(([what, { length }]) => `${length} answered ${what}`).join(', ')
}

/** What an answer is to be, and what is said of those that are not. */
interface Expected {
  isRight(answer: RehearsalAnswer): boolean
  /** Grades answers of one kind that are wrong; where all are advisable, it is a note whatever this says. */
  grade(wrong: readonly RehearsalAnswer[], all: readonly RehearsalAnswer[]): Grade
}

const ADVISABLE = 'Better so, but libraries that keep to the RFCs may do otherwise, and Tidings sends nothing like it.'

/** A scene each of whose answers is judged by itself. */
const each = (kind: Kind, name: string, { isRight, grade }: Expected): Scene => ({
  kind,
  name,
  judge(answers) {
    const sent = answers.filter(isSent)
    const wrong = sent.filter(answer => !isRight(answer))
    const serious = wrong.filter(({ isAdvisable }) => !isAdvisable)
    if (serious.length > 0) return grade(wrong.length === sent.length ? wrong : serious, sent)
    if (sent.length < answers.length) {
      const found = `${answers.length - sent.length} of ${answers.length} were not sent: ${answers.at(-1)!.detail}`
      return note(found, 'Answer sooner: what was not sent has not been tried.')
    }
    if (wrong.length === 0) return ok(summed(answers))
    return note(naming(wrong, sent, said(wrong[0]!)), ADVISABLE)
  },
})

/** Each answer must be 2XX; to a ping, 200. */
const accepted = (name: string, mend: string, status?: 200): Scene => {
  const isRight = (answer: RehearsalAnswer) => isDone(answer) && (status === undefined || answer.statusCode === status)
  const scene = each('accept', name, {
    isRight,
    grade: (wrong, all) => problem(naming(wrong, all, said(wrong[0]!)), wrongInAnyCase(wrong[0]!) ?? mend),
  })
  return {
    ...scene,
    judge(answers) {
      const grade = scene.judge(answers)
      const slowest = Math.max(...answers.map(({ durationMs }) => durationMs))
      if (grade.status !== 'ok' || slowest <= LATE_MS) return grade
      const seconds = Math.round(slowest / 1000)
      return note(grade.found, `The answer took ${seconds} s of 15: put longer work into a queue of your own.`)
    },
  }
}

/** Each answer must be 401. `mayWait`: a key that is not known may be answered 503 while it is looked for. */
const refused = (name: string, mend: string, { mayWait = false }: { mayWait?: boolean } = {}): Scene =>
  each('refuse', name, {
    isRight: ({ statusCode }) => statusCode === 401 || (mayWait && statusCode === 503),
    grade(wrong, all) {
      const letIn = wrong.filter(isDone)
      if (letIn.length > 0) {
        const found = naming(letIn, all, all.length === 1 ? `let in: ${said(letIn[0]!)}` : 'let in')
        return problem(found, mend)
      }
      const unclear = wrong.filter(it => !isRefused(it))
      if (unclear.length === 0) {
        return note(naming(wrong, all, said(wrong[0]!)), 'Refuse a token that is not valid with 401.')
      }
      const again = 'Refuse it with 401: after a 5XX Tidings sends it eleven times, and takes the fault for yours.'
      return problem(naming(unclear, all, said(unclear[0]!)), wrongInAnyCase(unclear[0]!) ?? again)
    },
  })

/** Each answer must be 5XX: what was signed and cannot be read is from a later server, and must come again. */
const unread: Scene = each('refuse', 'signed, without its members', {
  isRight: ({ statusCode, vector }) =>
    (statusCode !== null && statusCode >= 500) || (statusCode === 401 && vector === 'a body without webhookId'),
  grade: (wrong, all) =>
    problem(
      naming(wrong, all, said(wrong[0]!)),
      wrongInAnyCase(wrong[0]!) ??
        'Answer 500 to a signed body without webhookId, eventType, eventTime or payload: it is from a later server, ' +
          'and a 2XX or 4XX would lose it.',
    ),
})

const REPLAY =
  'Record the jti of what you have handled for 96 h, in one step with the claim, and refuse it with 401 and ' +
  'error_description="replay", also under a fresh token.'

/** The first must be 2XX, and the second 401 as a replay. */
const handledOnce = (name: string): Scene => ({
  kind: 'once',
  name,
  judge(answers) {
    const [first, second] = answers
    const found = allSaid(answers)
    if (!isDone(first!) || second === undefined) {
      return problem(found, wrongInAnyCase(first!) ?? 'Acknowledge a valid delivery with 2XX.')
    }
    if (isDone(second)) return problem(`handled twice: ${found}`, REPLAY)
    if (second.statusCode === 401) {
      return /replay/.test(second.challenge ?? '')
        ? ok(found)
        : note(found, 'Say error_description="replay" in WWW-Authenticate: then Tidings knows that it was handled.')
    }
    if (isRefused(second)) return note(found, 'Refuse a replay with 401 and error_description="replay".')
    return problem(found, wrongInAnyCase(second) ?? REPLAY)
  },
})

const together: Scene = {
  kind: 'once',
  name: 'five times at once',
  judge(answers) {
    const rounds = [...Map.groupBy(answers, ({ delivery }) => delivery).values()]
    const last = rounds.at(-1)!
    const done = last.filter(isDone).length
    const tried = `${rounds.length} ${rounds.length === 1 ? 'delivery' : 'deliveries'}`
    const found = `${done} of ${last.length} acknowledged: ${last.map(said).join(', ')}`
    if (done > 1) {
      const claim = 'Claim the jti in one atomic step before you handle it, in a store that all your processes share.'
      return problem(`handled ${done} times: ${found}`, `${claim} Answer 503 while it is being handled.`)
    }
    const wrong = answers.find(it => !isDone(it) && wrongInAnyCase(it) !== undefined)
    if (wrong) return problem(found, wrongInAnyCase(wrong)!)
    if (done === 0) return problem(found, 'One of several that come at once must be handled and answered 2XX.')
    const isKnown = answers.every(it => isDone(it) || it.statusCode === 401 || it.statusCode === 503)
    if (!isKnown) return note(found, 'Answer 503 to a delivery that is being handled: it comes again.')
    return ok(`${tried}, each handled once`)
  },
}

/** The first answer was not waited for; the delivery must be known to be handled soon after. */
const lostAnswer: Scene = {
  kind: 'once',
  name: 'retry after its sender hung up',
  judge([, ...answers]) {
    const found = allSaid(answers)
    if (answers.some(it => isDone(it) || it.statusCode === 401)) return ok(found)
    const last = answers.at(-1)
    if (last === undefined) return problem('no answer', 'Take the retry of a delivery whose sender has hung up.')
    if (last.statusCode !== 503) return problem(found, wrongInAnyCase(last) ?? 'Acknowledge a valid delivery with 2XX.')
    const mend = 'Go on handling when the sender hangs up, or release the claim: else its retries are turned away.'
    return note(found, mend)
  },
}

const refusedFirst: Scene = {
  kind: 'once',
  name: 'its id in refused requests first',
  judge(answers) {
    const last = answers.at(-1)!
    const found = allSaid(answers)
    const lets = answers.slice(0, -1).some(isDone)
    if (lets) return note(found, 'This could not be judged: a request was let in that must be refused, see above.')
    if (answers.length < 3) return problem(found, wrongInAnyCase(last) ?? 'Refuse what is not valid with 401.')
    if (isDone(last)) return ok(found)
    const mend =
      'Record a jti only when its event has been handled: whoever guesses it could make you refuse the event.'
    return problem(found, wrongInAnyCase(last) ?? mend)
  },
}

/** Some answer with 4XX is best; nothing of the event's is at stake. */
const turnedDown = (name: string, mend: string, best: number, mayHangUp = false): Scene => ({
  kind: 'refuse',
  name,
  judge([answer]) {
    const found = said(answer!)
    if (answer!.statusCode === best || isRefused(answer!)) return ok(found)
    if (mayHangUp && answer!.failure !== null && answer!.failure !== 'timeout') return ok(found)
    return note(found, mend)
  },
})

/** What is the registered webhook's own, or nobody's, may be let in. */
const tolerated = (scene: Scene): Scene => ({
  ...scene,
  judge: answers => {
    const grade = scene.judge(answers)
    return grade.status === 'problem' && answers.some(isDone) ? { ...grade, status: 'note' } : grade
  },
})

/** Whoever does not know its webhooks lets others in; whoever knows them must compare the whole id. */
const webhook: Scene = {
  ...refused('of another webhook', ''),
  judge([first, ...answers]) {
    const mend =
      'Compare webhookId in the body with the ids of your own webhooks: others may register one for your URL.'
    if (isDone(first!)) return note(`let in: ${said(first!)}`, mend)
    const isRight = ({ statusCode }: RehearsalAnswer) =>
      statusCode === 401 || (statusCode !== null && statusCode >= 500)
    const letIn = answers.filter(isDone)
    if (letIn.length > 0) {
      const which = `${letIn.length} of ${answers.length} ids that are nearly yours`
      return problem(`let in: ${which}`, 'Compare webhookId whole, as a text, in its own case.')
    }
    const unclear = [first!, ...answers].find(it => !isRight(it))
    if (unclear === undefined) return ok(summed([first!, ...answers]))
    return note(said(unclear), wrongInAnyCase(unclear) ?? 'Refuse another webhook with 401.')
  },
}

/** Nothing is handled, so it does no harm. */
const pingAgain: Scene = {
  kind: 'once',
  name: 'a ping twice',
  judge(answers) {
    const grade = handledOnce('').judge(answers)
    return isDone(answers[0]!) && answers.slice(1).some(isDone)
      ? note(
          allSaid(answers),
          'Record a ping that you have answered like an event: its token is then of no use to others.',
        )
      : grade
  },
}

const put = turnedDown('PUT', 'Answer 405 to any method but POST.', 405)

const SIGNATURE = 'Verify the signature with the key of the issuer’s /.well-known/jwks.json whose kid the header names'
const OWN_KEYS = 'and ignore jwk, jku, x5u and x5c'

/** Every scene, with how its answers are judged. */
export const scenes: Record<RehearsalScene, Scene> = {
  ping: accepted('ping', 'Verify a ping and answer it with exactly 200; there is nothing to handle.', 200),
  examples: accepted('examples', 'Acknowledge every valid event with 2XX, also one of a type that you do not need.'),
  unknown_type: accepted(
    'type of a later version',
    'Acknowledge types that you do not know: a later version has more.',
  ),
  more_in_payload: accepted(
    'payload with more in it',
    'Ignore members that you do not know: a later version has more.',
  ),
  clock_ahead: accepted('token of a clock 30 s ahead', 'Allow a minute between the clocks when you check iat.'),
  nearly_expired: accepted(
    'token with 15 s left',
    'A token is valid until exp. Check your clock, and that you verify on arrival.',
  ),
  slow: accepted(
    'body with a pause of 2 s',
    'Wait for the whole body, as long as Content-Length says, before you judge it.',
  ),
  late: accepted(
    'event of three days ago',
    'Retries and recoveries come late: judge the token’s exp, not the time of the event.',
  ),
  reordered: accepted(
    'the later event first',
    'Deliveries may come in any order: take both, and compare eventTime if it matters.',
  ),
  redelivered: accepted(
    'an event in two deliveries',
    'A redelivery has a jti of its own: acknowledge it, whether or not you handle its event again.',
  ),
  spelt_otherwise: accepted(
    'valid, written another way',
    'Read tokens and bodies with a library: any valid way of writing them counts, as does any case of the scheme.',
  ),
  no_token: refused(
    'no token after Bearer',
    'Require “Authorization: Bearer …”, the scheme at the header’s beginning, and one space after it.',
  ),
  malformed: refused(
    'malformed token',
    'Refuse what has not three parts in base64url of one JSON object each, and any header with crit or b64.',
  ),
  other_algorithm: refused(
    'another algorithm',
    'Name EdDSA to your library as the only algorithm: never let the token choose.',
  ),
  unknown_key: refused('key that is not published', `${SIGNATURE}, refuse a kid that is not there, ${OWN_KEYS}.`, {
    mayWait: true,
  }),
  wrong_signature: refused('signature of something else', `${SIGNATURE}, ${OWN_KEYS}.`),
  other_issuer: refused('another issuer', 'Compare iss with the server’s issuer address, character by character.'),
  other_audience: refused(
    'another audience',
    'Compare aud with your URL as it was registered, character by character; refuse a list.',
  ),
  expired: refused(
    'expired, or not valid yet',
    'Require exp, a number later than now and at most 300 s after iat; refuse an nbf over a minute ahead of now.',
  ),
  // RFC 7519 leaves it open.
  from_the_future: tolerated(
    refused('of the future, or no time', 'Require iat, a number at most a minute ahead of your clock.'),
  ),
  other_event: refused(
    'jti of another event, or none',
    'Compare jti with eventId in the body, both texts and not empty; refuse a body that is no JSON object.',
  ),
  other_body: refused('changed body', 'Compare the claim body_sha256 with the SHA-256 of the body’s bytes.'),
  incomplete_body: unread,
  // Nothing in the specification asks for it, and a receiver may serve many webhooks.
  other_webhook: webhook,
  other_method: {
    ...put,
    judge: answers =>
      isDone(answers[0]!) ? problem(`let in: ${allSaid(answers)}`, 'Take POST alone.') : put.judge(answers),
  },
  long_body: turnedDown('body over 1 MiB', 'Read at most 1 MiB of a body, and answer 413 to a longer one.', 413, true),
  replay: handledOnce('the same request twice'),
  retry: handledOnce('retry with a fresh token'),
  ping_again: pingAgain,
  lost_answer: lostAnswer,
  together,
  refused_first: refusedFirst,
}

/** What no request from outside can show. */
export const unseen: readonly string[] = [
  'A claim that is missing shows only if two requests meet between your look and your record: in a handler that ' +
    'takes no time they seldom do. Test it where you can hold one back.',
  'How long you remember a jti (96 h), and what your receiver does while the keys are away or change: the vectors in ' +
    'docs/receivers/vectors.json have key sets.',
]
