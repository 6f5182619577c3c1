import { CliError, Finished } from '../errors.ts'
import { safeJson } from '../output/neutralise.ts'
import { Output, type OutputFlags } from '../output/output.ts'
import { graphql, graphqlRequest, LOOK_TIMEOUT_MS } from './client.ts'
import {
  type Connection,
  type ConnectionFlags,
  connect,
  resolveSettings,
  type Setting,
  type Settings,
  serverUrl,
} from './connection.ts'
import { follow } from './follow.ts'
import { caFileSetting } from './network.ts'
import { type Profiles, readProfiles } from './profiles.ts'
import { withoutSecrets } from './without-secrets.ts'

/** The options that every command has. */
export interface GlobalOptions extends ConnectionFlags, OutputFlags {}

/** Options shared by the commands for which they have a meaning. */
interface SharedOptions {
  dryRun?: boolean | undefined
  yes?: boolean | undefined
}

/** The part of commander's Command that is needed, independent of its types. */
export interface Invocation {
  optsWithGlobals(): object
}

/** One run of a command: its output, and its server connection, resolved when first needed. */
export class Session {
  readonly output: Output
  readonly yes: boolean
  readonly #dryRun: boolean
  readonly #flags: GlobalOptions
  #settings: Settings | undefined

  constructor(command: Invocation) {
    const options = command.optsWithGlobals() as GlobalOptions & SharedOptions
    this.#flags = options
    this.#dryRun = options.dryRun ?? false
    this.yes = options.yes ?? false
    this.output = new Output(options)
  }

  get settings(): Settings {
    if (!this.#settings) {
      const { stored, fault } = this.#storedProfiles()
      this.#settings = { ...resolveSettings(this.#flags, process.env, stored), profilesFault: fault }
      for (const warning of this.#settings.warnings) this.output.warning(warning)
    }
    return this.#settings
  }

  /** A broken profiles file matters only for settings that would be in it. */
  #storedProfiles(): { stored: Profiles; fault?: CliError } {
    try {
      return { stored: readProfiles() }
    } catch (error) {
      const isNamed = this.#flags.profile !== undefined || process.env.TIDINGS_PROFILE
      if (!(error instanceof CliError) || isNamed) throw error
      return { stored: { profiles: {} }, fault: error }
    }
  }

  /** The settings of flags and environment only: a login must not use saved ones. */
  newSettings(): Settings {
    const { TIDINGS_PROFILE: _, ...environment } = process.env
    return resolveSettings({ ...this.#flags, profile: undefined }, environment, { profiles: {} })
  }

  get url(): URL {
    return serverUrl(this.settings)
  }

  get connection(): Connection {
    return connect(this.settings)
  }

  /** The file of authorities that are trusted in addition to Node's own. */
  get caFile(): Setting | undefined {
    return caFileSetting(this.#flags.caFile, process.env)
  }

  /** The profile of --profile. */
  get profileFlag(): string | undefined {
    return this.#flags.profile
  }

  get dryRun(): boolean {
    return this.#dryRun
  }

  /**
   * Sends a GraphQL request and returns its data. With --dry-run it prints the request without its signature instead,
   * and ends the command. Throws a CliError.
   */
  async graphql<Data>(document: string, variables: object = {}): Promise<Data> {
    if (this.#dryRun) {
      const { url } = graphqlRequest(this.url, document, variables)
      const body = { query: document, variables: withoutSecrets(variables) }
      this.output.data(`${safeJson({ method: 'POST', url: url.href, body }, 2)}\n`)
      this.output.message('Dry run: nothing was sent.')
      throw new Finished()
    }
    return this.ask(document, variables)
  }

  /** The same for a question on the way to a command's request: with --dry-run it is asked too. */
  async ask<Data>(document: string, variables: object = {}): Promise<Data> {
    return this.output.waiting(this.url.host, this.#send<Data>(document, variables))
  }

  /** The same as graphql for polling: it gives up sooner, and the caller reports that. */
  async look<Data>(document: string, variables: object = {}): Promise<Data> {
    return this.#send(document, variables, LOOK_TIMEOUT_MS)
  }

  /** The results of a subscription until the signal: see `follow`. */
  follow<Data>(document: string, variables: object, signal: AbortSignal, begun: () => void): AsyncGenerator<Data> {
    const { connection, output } = this
    const say = {
      begun,
      back: () => output.message('The server is back.'),
      warn: (text: string) => output.warning(text),
    }
    return follow<Data>({ connection, document, variables, signal }, say)
  }

  async #send<Data>(document: string, variables: object, timeoutMs?: number): Promise<Data> {
    const startedAt = performance.now()
    const connection = this.connection
    this.output.detail(
      `POST ${connection.url.href} as ${connection.apiKey}: ${document.replaceAll(/\s+/g, ' ').trim()}`,
    )
    const data = await graphql<Data>(connection, document, variables, {
      ...(timeoutMs !== undefined && { timeoutMs }),
      onRepeat: (why, pauseMs) => this.output.detail(`${why} Trying again in ${pauseMs / 1000} s.`),
    })
    this.output.detail(`Answered in ${Math.round(performance.now() - startedAt)} ms`)
    return data
  }
}
