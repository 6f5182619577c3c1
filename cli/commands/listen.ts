import { setTimeout as delay } from 'node:timers/promises'
import { Command } from '@commander-js/extra-typings'
import type { Pulling } from '../../receiver/pulling.ts'
import { Session } from '../connection/session.ts'
import { CliError, exitCodes, usageError } from '../errors.ts'
import { printArrival } from '../listen/arrival-output.ts'
import { prepareFolder, save, saving } from '../listen/keep.ts'
import { listenForKeys } from '../listen/keys.ts'
import { idToPull, pullTo } from '../listen/pull.ts'
import { ReachabilityWatch } from '../listen/reachability.ts'
import { type Arrival, startLocalReceiver } from '../listen/receiver.ts'
import { type RunningCommand, startCommand } from '../listen/run-command.ts'
import { parseScriptedResponses, type ScriptedResponse } from '../listen/scripted-responses.ts'
import { collect, examples, parseSelector, portNumber, wholeNumber } from '../options.ts'
import { cellText } from '../output/output.ts'
import { count, zoneAt, zoneName } from '../output/time.ts'
import { resolveIds } from '../resources/ids.ts'
import { allOf } from '../resources/mango-query.ts'
import { idForUrl, unlessForbidden } from '../resources/webhook.ts'
import { readSecretsFile } from '../resources/webhook-secrets.ts'
import { jwksUrl, keysFrom } from '../verify/jwks.ts'

export const listenCommand = () =>
  new Command('listen')
    .description(
      'A receiver on this machine. It verifies each delivery, prints a line, and answers: with 200, ' +
        'as --answer says, or with the answer of --forward. An invalid delivery is answered 401. ' +
        'With --pull it takes the deliveries from the server, so that it needs no address that the server can reach. ' +
        'With --register it also reports deliveries that the server sent and that did not arrive. ' +
        'It waits for a server that is unreachable. In a terminal, keys send the last delivery again, show it in ' +
        'full, or choose the next answer. Ctrl-C ends it.',
    )
    .option('--port <number>', 'port to listen on; 0 takes any free one', portNumber, 4200)
    .option('--path <path>', 'path to receive on', '/hooks')
    .option('--public-url <url>', 'the registered URL, if another one leads here, such as a tunnel’s')
    .option(
      '--pull',
      'take deliveries from any server, through firewalls and without a tunnel: of --webhook-id, ' +
        'or of a webhook that is created and disabled at the end',
    )
    .option('--register', 'create a webhook for it, and disable that at the end')
    .option('-e, --events <types>', 'with --register: only these event types', collect)
    .option('--forward <url>', 'forward valid deliveries, and pass the answer back')
    .option(
      '--answer <answers>',
      'rehearse: one answer for each delivery, the last one for all others, such as 500,reset,429:30,200',
      parseScriptedResponses,
    )
    .option('--forward-insecure', 'with --forward: accept any certificate, such as a self-signed one')
    .option('--answer-pings', 'apply --answer to pings too, which otherwise get 200')
    .option('--delay <ms>', 'milliseconds before each answer', wholeNumber)
    .option('--reset', 'rehearse: reset every connection')
    .option('--hang', 'rehearse: never answer')
    .option('--filter <json>', 'show only deliveries that this Mango selector matches; others get 200')
    .option('--save <folder>', 'save each request as a file in this folder, for tidings verify --request')
    .option('--full', 'print the whole of each delivery')
    .option('--once', 'end after one delivery')
    .option('--count <number>', 'end after this many deliveries; exit code 6 if one was invalid', wholeNumber)
    .option('--run <command>', 'run this in a shell with $WEBHOOK_ID once it listens; end if it fails')
    .option('--issuer <url>', 'what iss must equal; by default the server’s URL')
    .option('--jwks <source>', 'URL or file of the issuer’s keys')
    .option(
      '--secret-file <path>',
      'check Standard Webhooks signatures too, by the secrets in this file; with --register the webhook gets the first',
    )
    .option('--webhook-id <ids>', 'the ids or names of the only webhooks to accept; by default any', collect)
    .addHelpText(
      'after',
      examples(
        ['See events of any server arrive, from any network', 'tidings listen --pull'],
        ['The same for a server on this machine', 'tidings listen --register'],
        ['Try the receiver you are writing', 'tidings listen --register --forward http://127.0.0.1:8080/hooks'],
        [
          'Rehearse an outage: two failures, a request to wait, then well',
          'tidings listen --register --answer 500,reset,429:30,200',
        ],
        [
          'How does my own receiver answer?',
          'tidings listen --register --once --forward http://127.0.0.1:8080/hooks ' +
            `--run 'tidings webhooks ping "$WEBHOOK_ID"'`,
        ],
        ['Only what concerns one project', `tidings listen --register --filter '{"event.projectId":"ID"}'`],
        ['Through a tunnel', 'tidings listen --register --public-url https://abc.example.net/hooks'],
      ),
    )
    .action(async (options, invocation) => {
      const session = new Session(invocation)
      const { output } = session
      const responses = scriptedResponses(options)
      if (!options.path.startsWith('/')) throw usageError('The path does not begin with “/”.', 'Such as: --path /hooks')
      if (options.publicUrl !== undefined) httpUrl(options.publicUrl, '--public-url https://abc.example.net/hooks')
      const named = await resolveIds(session, 'webhooks', options.webhookId)
      const secrets = options.secretFile === undefined ? undefined : readSecretsFile(options.secretFile)
      const issuer = options.issuer ?? session.url.href.replace(/\/$/, '')
      const pulled = options.pull ? await pulledId(session, named, options) : undefined
      const pulledUrl = pulled === undefined ? undefined : `${issuer}/pull/${pulled}`
      const webhookIds = pulled === undefined ? named : [pulled]
      const registers = pulled === undefined ? options.register === true : named === undefined
      if (options.save !== undefined) prepareFolder(options.save)

      const wanted = options.once ? 1 : options.count
      const ending = Promise.withResolvers<void>()
      let counting = !registers
      let received = 0
      let invalid = 0
      const arrivals = new Map<string, number>()
      let last: Arrival | undefined
      const isWanted = options.filter === undefined ? undefined : await filterBy(session, options.filter)
      let isWebhookTold = false
      const tellWebhook = ({ verification, eventType, body }: Arrival): void => {
        if (isWebhookTold || eventType !== 'ping' || !verification?.ok) return
        isWebhookTold = true
        const { webhookId } = JSON.parse(body)
        output.message(
          `Pinged by webhook ${cellText(webhookId)}. To accept only this one: --webhook-id ${cellText(webhookId)}`,
        )
      }
      const receiver = await startLocalReceiver({
        port: pulled === undefined ? options.port : 0,
        path: options.path,
        keysUrl: keysFrom(options.jwks ?? jwksUrl(issuer)),
        issuer,
        responses,
        // The ping of the registration must be answered with 200.
        get scriptPings() {
          return counting && (options.answerPings ?? false)
        },
        ...(options.publicUrl !== undefined && { audience: options.publicUrl }),
        ...(pulledUrl !== undefined && { audience: pulledUrl }),
        ...(webhookIds !== undefined && { webhookIds }),
        ...(secrets !== undefined && { secrets }),
        ...(isWanted && { isWanted }),
        ...(options.delay !== undefined && { delayMs: options.delay }),
        ...(options.forward !== undefined && {
          forward: httpUrl(options.forward, '--forward http://127.0.0.1:8080/hooks'),
          insecure: options.forwardInsecure ?? false,
        }),
        onRequest: eventId => {
          if (eventId !== undefined) arrivals.set(eventId, (arrivals.get(eventId) ?? 0) + 1)
        },
        onDelivery: arrival => {
          last = arrival
          printArrival(output, arrival, options.full ?? false)
          if (!registers && webhookIds === undefined) tellWebhook(arrival)
          if (options.save !== undefined) saving(output, () => save(options.save!, arrival, url))
          if (!counting) return
          received += 1
          if (!arrival.verification?.ok) invalid += 1
          if (received === wanted) ending.resolve()
        },
      })
      const url = pulledUrl ?? options.publicUrl ?? receiver.url
      const stop = () => ending.resolve()
      for (const signal of SIGNALS) process.once(signal, stop)
      let webhookId: string | undefined
      let reachability: ReachabilityWatch | undefined
      let command: RunningCommand | undefined
      let stopKeys = () => {}
      let pulling: Pulling | undefined
      try {
        const place = pulled === undefined ? `Listening on ${receiver.url}` : `Pulling from ${session.url.host}`
        output.message(`${place}. Times are ${zoneName(zoneAt(Date.now()))}, as on this machine. Ctrl-C ends it.`)
        if (pulled !== undefined) {
          pulling = pullTo(session, pulled, () => receiver.url)
          pulling.ended.catch(ending.reject)
          if (registers) {
            await registerPulled(session, pulled, options.events)
            webhookId = pulled
            output.message(`Registered as webhook ${pulled}. It is disabled when this ends.`)
          }
        } else if (registers) {
          const answered = () => answerTo(last, options.forward)
          const registered = await register(session, url, options.events, { secret: secrets?.[0], ownAnswer: answered })
          webhookId = registered.id
          output.message(`Registered as webhook ${webhookId}. It is disabled when this ends.`)
          reachability = new ReachabilityWatch({
            ask: (document, variables) => session.look(document, variables),
            webhookId,
            after: registered.lastDelivery,
            url,
            receiverUrl: receiver.url,
            arrivals: id => arrivals.get(id) ?? 0,
            say: text => output.warning(text),
          })
          // Comparing attempts with arrivals needs the permission read.
          if (registered.mayRead) reachability.start()
        } else {
          output.message(`Register it in another terminal with: tidings webhooks create ${url}`)
        }
        counting = true
        // A command of --run uses the keyboard.
        if (options.run === undefined) stopKeys = listenForKeys(session, { receiver, last: () => last, end: stop })
        if (options.run !== undefined) {
          command = startCommand(options.run, { webhookId, url, profile: session.profileFlag })
          command.ended.catch(ending.reject)
        }
        await ending.promise
        // The awaited delivery has just come.
        if (command) await Promise.race([command.ended, delay(GRACE_MS, undefined, { ref: false })])
      } finally {
        stopKeys()
        command?.stop()
        reachability?.stop()
        if (pulling) await Promise.race([pulling.stop(), delay(GRACE_MS, undefined, { ref: false })])
        if (webhookId !== undefined) await disable(session, webhookId)
        await receiver.close()
        for (const signal of SIGNALS) process.off(signal, stop)
      }
      output.message(`Received ${count(received, 'delivery', 'deliveries')}, ${invalid} of them not valid.`)
      if (wanted !== undefined && invalid > 0) {
        throw new CliError(
          exitCodes.verificationFailed,
          'VERIFICATION_FAILED',
          `${count(invalid, 'delivery', 'deliveries')} of ${received} did not verify.`,
          'The lines above say why; --save and tidings verify --request show every check.',
        )
      }
    })

/** The webhook to pull from: the named one, or one of this machine's own. Throws a CliError if options do not fit. */
const pulledId = async (
  session: Session,
  named: string[] | undefined,
  {
    publicUrl,
    register,
    secretFile,
  }: { publicUrl?: string | undefined; register?: true | undefined; secretFile?: string | undefined },
): Promise<string> => {
  if (publicUrl !== undefined) throw usageError('--pull needs no --public-url: nothing is sent here.')
  if (named === undefined) {
    if (secretFile === undefined) return idToPull(session)
    throw usageError(
      'The webhook that --pull creates has no secret to check by.',
      'Name one that has with --webhook-id, or leave --secret-file out.',
    )
  }
  if (named.length > 1) throw usageError('--pull takes the deliveries of one webhook.', 'Give one --webhook-id.')
  if (register) throw usageError('--register creates a webhook, and --webhook-id names one.', 'Leave one of them out.')
  return named[0]!
}

const registerPulled = (session: Session, id: string, events: string[] | undefined): Promise<unknown> =>
  session.graphql(
    `mutation ($id: UUID, $events: [EventType!]) {
      upsertWebhook(id: $id, transport: pull, events: $events, status: active) { id }
    }`,
    { id, events: events ?? [] },
  )

/** Asks the server which deliveries a selector matches. Throws a CliError if the server does not answer. */
const filterBy = async (session: Session, filter: string): Promise<(eventId: string) => Promise<boolean>> => {
  const selector = parseSelector(filter)
  const document = 'query ($query: MangoQuery) { deliveries(query: $query) { id } }'
  await session.graphql(document, { query: { selector, limit: 0 } })
  return async id => {
    const query = { selector: allOf([{ id }, selector]), limit: 1 }
    try {
      return (await session.graphql<{ deliveries: unknown[] }>(document, { query })).deliveries.length > 0
    } catch (error) {
      session.output.warning(`The server could not say whether the filter matches ${id}: ${(error as Error).message}`)
      return true
    }
  }
}

/** How long a command of --run has to end by itself after everything was received. */
const GRACE_MS = 2_000

const SIGNALS = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const

const scriptedResponses = ({
  answer,
  reset,
  hang,
  forward,
}: {
  answer?: ScriptedResponse[] | undefined
  reset?: true | undefined
  hang?: true | undefined
  forward?: string | undefined
}): ScriptedResponse[] => {
  const given = [answer && '--answer', reset && '--reset', hang && '--hang', forward && '--forward'].filter(Boolean)
  if (given.length > 1)
    throw usageError(
      `${given.join(' and ')} both choose the answer.`,
      'Give one of them. --answer can do reset and hang too.',
    )
  if (reset) return [{ kind: 'reset' }]
  if (hang) return [{ kind: 'hang' }]
  return answer ?? []
}

const httpUrl = (text: string, suchAs: string): URL => {
  const url = URL.parse(text)
  if (url && /^https?:$/.test(url.protocol)) return url
  throw usageError(`${JSON.stringify(text)} is no http or https URL.`, `Such as: ${suchAs}`)
}

/**
 * Reuses the webhook of this URL from an earlier run, so that runs do not leave one each. One with a secret of its own
 * is new, since an earlier one may have another.
 */
const register = async (
  session: Session,
  url: string,
  events: string[] | undefined,
  { secret, ownAnswer }: { secret: string | undefined; ownAnswer: () => string | undefined },
): Promise<{ id: string; lastDelivery: string; mayRead: boolean }> => {
  const found = await session
    .graphql<{ webhooks: { id: string; deliveries?: { id: string }[] }[] }>(
      `query ($query: MangoQuery) {
        webhooks(query: $query) { id deliveries(query: { sort: [{ id: "desc" }], limit: 1 }) { id } }
      }`,
      { query: { selector: { url, status: { $ne: 'active' } } } },
    )
    .catch(unlessForbidden)
  const mayRead = found !== undefined
  const earlier = mayRead ? found.webhooks[0] : { id: await idForUrl(session.connection.apiKey, url), deliveries: [] }
  const { webhook } = await session
    .graphql<{ webhook: { id: string } }>(
      `mutation (
        $id: UUID, $url: String!, $events: [EventType!], $status: WebhookStatus,
        $signing: WebhookSigning, $secret: String
      ) {
      webhook: upsertWebhook(
        id: $id, url: $url, events: $events, status: $status, signing: $signing, secret: $secret
      ) { id }
    }`,
      {
        ...(earlier && secret === undefined && { id: earlier.id }),
        ...{ url, events: events ?? [], status: 'active' },
        ...(secret !== undefined && { signing: 'standard', secret }),
      },
    )
    .catch(error => {
      throw error instanceof CliError && error.code === 'PING_FAILED' ? notReachedHere(error, url, ownAnswer()) : error
    })
  return { id: webhook.id, lastDelivery: earlier?.deliveries?.[0]?.id ?? '', mayRead }
}

/** What the ping was answered with, if it came here; undefined if it did not come. */
const answerTo = (ping: Arrival | undefined, forward: string | undefined): string | undefined => {
  if (ping === undefined) return undefined
  if (forward === undefined) {
    const why = ping.reason === undefined ? '' : ` (${ping.reason})`
    return `The ping came here and was answered with ${ping.answered}${why}; a registration needs exactly 200.`
  }
  if (ping.reason !== undefined) return `The ping came here. ${cellText(ping.reason)}. Repair that, and run this again.`
  return (
    `The ping came here, and ${cellText(forward)} answered it with ${ping.answered}. A registration needs ` +
    'exactly 200: answer events of the type ping with 200.'
  )
}

const notReachedHere = ({ exitCode, code, message }: CliError, url: string, own: string | undefined): CliError =>
  new CliError(
    exitCode,
    code,
    message,
    own ??
      `The server must reach ${cellText(url)} from its own machine. If that is another one, ` +
        'open a tunnel here and name its public URL: --public-url URL. If it is this one, ' +
        'its network guard must allow it: TIDINGS_ALLOW_NETWORKS=127.0.0.0/8',
  )

const disable = async (session: Session, id: string): Promise<void> => {
  try {
    await session.graphql('mutation ($id: UUID!) { upsertWebhook(id: $id, status: disabled) { id } }', { id })
    session.output.message('The webhook is disabled.')
  } catch (error) {
    session.output.warning(
      `The webhook could not be disabled: ${(error as Error).message} Do it with: tidings webhooks disable ${id}`,
    )
  }
}
