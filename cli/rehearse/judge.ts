import type { RehearsalScene } from '../../shared/vocabulary.ts'

/** The answer to one request of a rehearsal, as the server tells it. */
export interface RehearsalAnswer {
  eventType: string
  statusCode: number | null
  failure: string | null
  detail: string | null
  challenge: string | null
  durationMs: number
}

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

/** Each answer must be 2XX; to a ping, 200. */
const accepted = (name: string, mend: string, status?: 200): Scene => ({
  kind: 'accept',
  name,
  judge(answers) {
    const wrong = answers.find(it => !isDone(it) || (status !== undefined && it.statusCode !== status))
    if (wrong === undefined) {
      const slowest = Math.max(...answers.map(({ durationMs }) => durationMs))
      const found = allSaid(answers)
      if (slowest <= LATE_MS) return ok(found)
      return note(
        found,
        `The answer took ${Math.round(slowest / 1000)} s of 15: put longer work into a queue of your own.`,
      )
    }
    const of = answers.length > 1 ? ` to ${wrong.eventType}` : ''
    return problem(`${said(wrong)}${of}`, wrongInAnyCase(wrong) ?? mend)
  },
})

/** Each answer must be 401. `mayWait`: a key that is not known may be answered 503 while it is looked for. */
const refused = (name: string, mend: string, { mayWait = false }: { mayWait?: boolean } = {}): Scene => ({
  kind: 'refuse',
  name,
  judge(answers) {
    const found = allSaid(answers)
    const wrong = answers.filter(({ statusCode }) => statusCode !== 401 && !(mayWait && statusCode === 503))
    if (wrong.length === 0) return ok(found)
    if (wrong.some(isDone)) return problem(`let in: ${found}`, mend)
    const unclear = wrong.find(it => !isRefused(it))
    if (unclear === undefined) return note(found, 'Refuse a token that is not valid with 401.')
    const again = 'Refuse it with 401: after a 5XX Tidings sends it eleven times, and takes the fault for yours.'
    return problem(found, wrongInAnyCase(unclear) ?? again)
  },
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
    const done = answers.filter(isDone).length
    const found = `${done} of ${answers.length} acknowledged: ${answers.map(said).join(', ')}`
    if (done > 1) {
      const claim = 'Claim the jti in one atomic step before you handle it, in a store that all your processes share.'
      return problem(`handled ${done} times: ${found}`, `${claim} Answer 503 while it is being handled.`)
    }
    const wrong = answers.find(it => !isDone(it) && wrongInAnyCase(it) !== undefined)
    if (wrong) return problem(found, wrongInAnyCase(wrong)!)
    if (done === 0) return problem(found, 'One of several that come at once must be handled and answered 2XX.')
    const isKnown = answers.every(it => isDone(it) || it.statusCode === 401 || it.statusCode === 503)
    return isKnown ? ok(found) : note(found, 'Answer 503 to a delivery that is being handled: it comes again.')
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

const webhook = refused(
  'of another webhook',
  'Compare webhookId in the body with the ids of your own webhooks: others may register one for your URL.',
)

const put = turnedDown('PUT', 'Answer 405 to any method but POST.', 405)

const SIGNATURE = 'Verify the signature with the key of the issuer’s /.well-known/jwks.json whose kid the header names'

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
  no_token: refused('without Authorization', 'Require “Authorization: Bearer …”.'),
  other_scheme: refused(
    'Basic, alone and before Bearer',
    'Take a token only after the scheme Bearer, at the header’s beginning.',
  ),
  no_jwt: refused(
    'a token that is none',
    'Refuse what has not three parts in base64url with 401; let no exception become a 500.',
  ),
  alg_none: refused('algorithm none', 'Name EdDSA to your library as the only algorithm: never let the token choose.'),
  hmac_with_public_key: refused(
    'HS256 with the public key',
    'Name EdDSA to your library as the only algorithm: never let the token choose.',
  ),
  other_key: refused('signature by another key', `${SIGNATURE}.`),
  unknown_key: refused('key that is not published', `${SIGNATURE}, and refuse a kid that is not there.`, {
    mayWait: true,
  }),
  own_key_in_header: refused('key in the token’s header', `${SIGNATURE}; ignore jwk, jku, x5u and x5c.`),
  critical_extension: refused(
    'critical extension',
    'Refuse a token whose header has crit (RFC 7515, section 4.1.11): delivery tokens have no extensions.',
  ),
  other_issuer: refused('another issuer', 'Compare iss with the server’s issuer address, character by character.'),
  other_audience: refused(
    'another audience',
    'Compare aud with your URL as it was registered, character by character.',
  ),
  listed_audience: refused('list of audiences', 'aud is one text: refuse a list, even if your URL is in it.'),
  expired: refused('expired', 'Refuse a token on or after its exp. Check that your library does, and your clock.'),
  // RFC 7519 leaves it open.
  from_the_future: tolerated(
    refused('token of a clock 4 minutes ahead', 'Refuse an iat that is more than a minute ahead of your clock.'),
  ),
  other_body: refused('changed body', 'Compare the claim body_sha256 with the SHA-256 of the body’s bytes.'),
  other_event: refused(
    'jti of another event, or of none',
    'Compare jti with eventId in the body, and refuse a token without jti.',
  ),
  // Nothing in the specification asks for it, and a receiver may serve many webhooks.
  other_webhook: tolerated(webhook),
  other_method: {
    ...put,
    judge: answers =>
      isDone(answers[0]!) ? problem(`let in: ${allSaid(answers)}`, 'Take POST alone.') : put.judge(answers),
  },
  long_body: turnedDown('body over 1 MiB', 'Read at most 1 MiB of a body, and answer 413 to a longer one.', 413, true),
  replay: handledOnce('the same request twice'),
  retry: handledOnce('retry with a fresh token'),
  lost_answer: lostAnswer,
  together,
  refused_first: refusedFirst,
}
