import { hasMethods, requireGiven } from './given.ts'
import type { VerifyOptions } from './options.ts'

/** Stores the id of the receiver's webhook, such as in a file or a row. */
export interface WebhookIdKeeper {
  load(): string | undefined | Promise<string | undefined>
  save(webhookId: string): unknown
}

/** How long an id serves that was loaded, before it is loaded again. */
const FRESH_MS = 300_000

/**
 * A value for the option `webhookId` that learns: it saves the webhook's id from the first verified ping, that of the
 * registration, and accepts no other webhook from then on. It trusts the first webhook for the endpoint's URL, so
 * register your webhook before you publish the URL.
 *
 * An id that was loaded serves for five minutes, and is then loaded again while it still serves, so that no delivery of
 * a webhook that is known waits for `load`, or needs it to answer. Any other id is compared with what `load` tells now.
 * If that cannot be had, the delivery is answered 5XX and comes again: nobody knows whose it is.
 *
 * @example
 *   const webhookId = learnedWebhook({ load: () => readId(), save: id => writeId(id) })
 */
export const learnedWebhook = (keeper: WebhookIdKeeper): Exclude<VerifyOptions['webhookId'], undefined> => {
  requireGiven(hasMethods(keeper, 'load', 'save'), 'keeper', keeper, 'an object with the methods load and save')
  // The webhook that this process is the first to learn, and the writing of it. It is set without waiting in between,
  // so that of two concurrent pings exactly one is the first; nothing waits for anybody's `load` but its own.
  let first: { webhookId: string; saved: Promise<void> } | undefined
  const known = new LoadedId(keeper)
  return async (webhookId, { eventType }) => {
    if (known.is(webhookId)) return true
    const expected = (await known.load()) ?? first?.webhookId
    if (expected !== undefined && expected !== webhookId) return false
    if (first === undefined) {
      if (expected !== undefined) return true
      if (eventType !== 'ping') return false
      const learning = { webhookId, saved: save(keeper, webhookId) }
      first = learning
      learning.saved.catch(() => {
        if (first === learning) first = undefined
      })
    }
    await first.saved
    return true
  }
}

/** The id as it was loaded last. */
class LoadedId {
  readonly #keeper: WebhookIdKeeper
  #webhookId: string | undefined
  #atMs = 0
  #isLoading = false

  constructor(keeper: WebhookIdKeeper) {
    this.#keeper = keeper
  }

  /** Whether this id was loaded. One that was loaded long ago is loaded again, and serves until there is an answer. */
  is(webhookId: string): boolean {
    if (this.#webhookId !== webhookId) return false
    if (performance.now() - this.#atMs >= FRESH_MS && !this.#isLoading) {
      this.#isLoading = true
      const ended = () => {
        this.#isLoading = false
      }
      this.load().then(ended, ended)
    }
    return true
  }

  async load(): Promise<string | undefined> {
    const startedMs = performance.now()
    const loaded = await this.#keeper.load()
    // Of two answers the one that was asked for later counts.
    if (startedMs >= this.#atMs) {
      this.#webhookId = loaded
      this.#atMs = startedMs
    }
    return loaded
  }
}

const save = async (keeper: WebhookIdKeeper, webhookId: string): Promise<void> => void (await keeper.save(webhookId))
