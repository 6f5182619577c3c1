import { setTimeout as delay } from 'node:timers/promises'
import { Command } from '@commander-js/extra-typings'
import { Session } from '../connection/session.ts'
import { CliError, exitCodes, usageError } from '../errors.ts'
import { printArrival } from '../listen/arrival-output.ts'
import { prepareFolder, save, saving } from '../listen/keep.ts'
import { listenForKeys } from '../listen/keys.ts'
import { idToPull, pullTo } from '../listen/pull.ts'
import { ReachabilityWatch } from '../listen/reachability.ts'
import { type Arrival, startLocalReceiver } from '../listen/receiver.ts'
import { startCommand } from '../listen/run-command.ts'
import { parseScriptedResponses, type ScriptedResponse } from '../listen/scripted-responses.ts'
import { collect, examples, parseSelector, portNumber, wholeNumber } from '../options.ts'
import { cellText } from '../output/output.ts'
import { count, zoneAt, zoneName } from '../output/time.ts'
import { resolveIds } from '../resources/ids.ts'
import { allOf } from '../resources/mango-query.ts'
import { idForUrl, unlessForbidden } from '../resources/webhook.ts'
import { readSecretsFile } from '../resources/webhook-secrets.ts'
import { jwksUrl, keysFrom } from '../verify/jwks.ts'

const listenOptions = () =>
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

export const listenCommand = () =>
  listenOptions()
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
      const listening = new Listening(new Session(invocation), options)
      try {
        await listening.run()
      } finally {
        await listening.end()
      }
      listening.report()
    })

type Options = ReturnType<ReturnType<typeof listenOptions>['opts']>

/** What it listens to: the id to pull from, the only webhooks to accept, and whether it registers one. */
type Source = {
  issuer: string
  pulled: string | undefined
  webhookIds: string[] | undefined
  registers: boolean
  secrets: readonly string[] | undefined
  responses: ScriptedResponse[]
}

/** One run of the command: a receiver, with what it registers, runs and watches. */
class Listening {
  readonly #session: Session
  readonly #options: Options
  readonly #ending = Promise.withResolvers<void>()
  readonly #stop = () => this.#ending.resolve()
  readonly #arrivals = new Map<string, number>()
  /** Ends what has been started, the last first. */
  readonly #ends: (() => unknown)[] = []
  /** What comes before counts for nothing: the ping of the registration. */
  #isCounting = false
  #received = 0
  #invalid = 0
  #last: Arrival | undefined
  #isWebhookShown = false
  /** The webhook that it has registered. */
  #webhookId: string | undefined

  constructor(session: Session, options: Options) {
    this.#session = session
    this.#options = options
  }

  get #wanted(): number | undefined {
    return this.#options.once ? 1 : this.#options.count
  }

  /** Listens until it is asked to end, or has received what was wanted. */
  async run(): Promise<void> {
    const { output } = this.#session
    const source = await this.#source()
    const { issuer, pulled, registers } = source
    this.#isCounting = !registers
    const pulledUrl = pulled === undefined ? undefined : `${issuer}/pull/${pulled}`
    const receiver = await this.#receive(source, pulledUrl)
    const url = pulledUrl ?? this.#options.publicUrl ?? receiver.url
    for (const signal of SIGNALS) process.once(signal, this.#stop)
    this.#ends.push(() => SIGNALS.forEach(signal => void process.off(signal, this.#stop)))
    this.#ends.push(() => receiver.close())
    this.#ends.push(() => this.#webhookId !== undefined && disable(this.#session, this.#webhookId))
    const place = pulled === undefined ? `Listening on ${receiver.url}` : `Pulling from ${this.#session.url.host}`
    output.message(`${place}. Times are ${zoneName(zoneAt(Date.now()))}, as on this machine. Ctrl-C ends it.`)
    if (pulled !== undefined) this.#pull(pulled, receiver.url)
    if (!registers && pulled === undefined) {
      output.message(`Register it in another terminal with: tidings webhooks create ${url}`)
    }
    if (registers) await this.#register(source, url, receiver.url)
    this.#isCounting = true
    await this.#untilEnd(receiver, url)
  }

  /** Checks the options, and reads what they name. */
  async #source(): Promise<Source> {
    const { path, publicUrl, webhookId, secretFile, pull, register, save: folder } = this.#options
    const responses = scriptedResponses(this.#options)
    if (!path.startsWith('/')) throw usageError('The path does not begin with “/”.', 'Such as: --path /hooks')
    if (publicUrl !== undefined) httpUrl(publicUrl, '--public-url https://abc.example.net/hooks')
    const named = await resolveIds(this.#session, 'webhooks', webhookId)
    const secrets = secretFile === undefined ? undefined : readSecretsFile(secretFile)
    const issuer = this.#options.issuer ?? this.#session.url.href.replace(/\/$/, '')
    const pulled = pull ? await pulledId(this.#session, named, this.#options) : undefined
    if (folder !== undefined) prepareFolder(folder)
    const registers = pulled === undefined ? register === true : named === undefined
    return { issuer, pulled, registers, secrets, responses, webhookIds: pulled === undefined ? named : [pulled] }
  }

  async #receive(source: Source, pulledUrl: string | undefined): Promise<Receiver> {
    const { issuer, pulled, registers, webhookIds, secrets, responses } = source
    const options = this.#options
    const isWanted = options.filter === undefined ? undefined : await filterBy(this.#session, options.filter)
    const scriptsPings = () => this.#isCounting && (options.answerPings ?? false)
    const receiver = await startLocalReceiver({
      port: pulled === undefined ? options.port : 0,
      path: options.path,
      keysUrl: keysFrom(options.jwks ?? jwksUrl(issuer)),
      issuer,
      responses,
      // The ping of the registration must be answered with 200.
      get scriptPings() {
        return scriptsPings()
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
        if (eventId !== undefined) this.#arrivals.set(eventId, (this.#arrivals.get(eventId) ?? 0) + 1)
      },
      onDelivery: arrival => {
        this.#arrived(arrival, pulledUrl ?? options.publicUrl ?? receiver.url)
        if (!registers && webhookIds === undefined) this.#showWebhook(arrival)
      },
    })
    return receiver
  }

  #arrived(arrival: Arrival, url: string): void {
    const { output } = this.#session
    const { full = false, save: folder } = this.#options
    this.#last = arrival
    printArrival(output, arrival, full)
    if (folder !== undefined) saving(output, () => save(folder, arrival, url))
    if (!this.#isCounting) return
    this.#received += 1
    if (!arrival.verification?.ok) this.#invalid += 1
    if (this.#received === this.#wanted) this.#stop()
  }

  /** Says once which webhook has pinged. */
  #showWebhook({ verification, eventType, body }: Arrival): void {
    if (this.#isWebhookShown || eventType !== 'ping' || !verification?.ok) return
    this.#isWebhookShown = true
    const id = cellText(JSON.parse(body).webhookId)
    this.#session.output.message(`Pinged by webhook ${id}. To accept only this one: --webhook-id ${id}`)
  }

  #pull(id: string, receiverUrl: string): void {
    const pulling = pullTo(this.#session, id, () => receiverUrl)
    pulling.ended.catch(this.#ending.reject)
    this.#ends.push(() => Promise.race([pulling.stop(), delay(GRACE_MS, undefined, { ref: false })]))
  }

  /** Registers a webhook, which is disabled at the end. */
  async #register({ pulled, secrets }: Source, url: string, receiverUrl: string): Promise<void> {
    const session = this.#session
    const { events, forward } = this.#options
    const registeredAs = (id: string): void => {
      this.#webhookId = id
      session.output.message(`Registered as webhook ${id}. It is disabled when this ends.`)
    }
    if (pulled !== undefined) {
      await registerPulled(session, pulled, events)
      return registeredAs(pulled)
    }
    const ownAnswer = () => answerTo(this.#last, forward)
    const registered = await register(session, url, events, { secret: secrets?.[0], ownAnswer })
    registeredAs(registered.id)
    const reachability = new ReachabilityWatch({
      ask: (document, variables) => session.look(document, variables),
      webhookId: registered.id,
      after: registered.lastDelivery,
      url,
      receiverUrl,
      arrivals: id => this.#arrivals.get(id) ?? 0,
      say: text => session.output.warning(text),
    })
    // Comparing attempts with arrivals needs the permission read.
    if (registered.mayRead) reachability.start()
    this.#ends.push(() => reachability.stop())
  }

  /** Listens to the keyboard, or runs the command, which uses it itself. */
  async #untilEnd(receiver: Receiver, url: string): Promise<void> {
    const session = this.#session
    if (this.#options.run === undefined) {
      this.#ends.push(listenForKeys(session, { receiver, last: () => this.#last, end: this.#stop }))
      return this.#ending.promise
    }
    const command = startCommand(this.#options.run, { webhookId: this.#webhookId, url, profile: session.profileFlag })
    this.#ends.push(() => command.stop())
    command.ended.catch(this.#ending.reject)
    await this.#ending.promise
    // The awaited delivery has just come.
    await Promise.race([command.ended, delay(GRACE_MS, undefined, { ref: false })])
  }

  /** Ends what was started: keys and command, the webhook, the receiver. */
  async end(): Promise<void> {
    for (const end of this.#ends.toReversed()) await end()
  }

  /** Says what has come. Throws a CliError if a delivery that was wanted did not verify. */
  report(): void {
    const [received, invalid] = [this.#received, this.#invalid]
    this.#session.output.message(`Received ${count(received, 'delivery', 'deliveries')}, ${invalid} of them not valid.`)
    if (this.#wanted === undefined || invalid === 0) return
    throw new CliError(
      exitCodes.verificationFailed,
      'VERIFICATION_FAILED',
      `${count(invalid, 'delivery', 'deliveries')} of ${received} did not verify.`,
      'The lines above say why; --save and tidings verify --request show every check.',
    )
  }
}

type Receiver = Awaited<ReturnType<typeof startLocalReceiver>>

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
