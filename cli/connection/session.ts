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
import { openLive } from './live.ts'
import { caFileSetting } from './network.ts'
import { type Profiles, readProfiles } from './profiles.ts'

/** The options that every command has. */
export interface GlobalOptions extends ConnectionFlags, OutputFlags {}

/** Options that commands share where they have a meaning. */
interface SharedOptions {
  dryRun?: boolean | undefined
  yes?: boolean | undefined
}

/** What a command needs from commander's; any command will do, whatever its types. */
export interface Invocation {
  optsWithGlobals(): object
}

/** One run of one command: where its output goes, and the server it speaks to, found out when first needed. */
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

  /** A file of profiles that is broken is the fault only of what would be in it. */
  #storedProfiles(): { stored: Profiles; fault?: CliError } {
    try {
      return { stored: readProfiles() }
    } catch (error) {
      const isNamed = this.#flags.profile !== undefined || process.env.TIDINGS_PROFILE
      if (!(error instanceof CliError) || isNamed) throw error
      return { stored: { profiles: {} }, fault: error }
    }
  }

  /** Only what flags and environment say, for a login, which must not mix in what an earlier one saved. */
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

  /** The file of authorities that are trusted besides Node's own. */
  get caFile(): Setting | undefined {
    return caFileSetting(this.#flags.caFile, process.env)
  }

  /** The profile that --profile names. */
  get profileFlag(): string | undefined {
    return this.#flags.profile
  }

  get dryRun(): boolean {
    return this.#dryRun
  }

  /**
   * Sends a GraphQL request and answers with its data. With --dry-run it prints the request instead, without
   * its signature, and ends the command there.
   */
  async graphql<Data>(document: string, variables: object = {}): Promise<Data> {
    if (this.#dryRun) {
      const { url } = graphqlRequest(this.url, document, variables)
      this.output.data(`${safeJson({ method: 'POST', url: url.href, body: { query: document, variables } }, 2)}\n`)
      this.output.message('Dry run: nothing was sent.')
      throw new Finished()
    }
    return this.output.waiting(this.url.host, this.#send<Data>(document, variables))
  }

  /** As graphql, for one look of many at what changes: it gives up sooner, and the caller says so. */
  async look<Data>(document: string, variables: object = {}): Promise<Data> {
    return this.#send(document, variables, LOOK_TIMEOUT_MS)
  }

  /** What a subscription brings as it happens, where the server offers that: see openLive. */
  live<Data>(document: string, variables: object, signal: AbortSignal) {
    return openLive<Data>(this.connection, document, variables, signal)
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
