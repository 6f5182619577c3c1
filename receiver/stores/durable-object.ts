import { hasMethods, requireGiven } from '../given.ts'
import type { Claim, ReplayStore } from '../replay-store.ts'

/** The part of a Durable Object's state that the object uses. */
export interface DurableStorage {
  storage: {
    get(key: string): Promise<unknown>
    put(key: string, value: unknown): Promise<void>
    delete(key: string): Promise<boolean>
    setAlarm(atMs: number): Promise<void>
    deleteAll(): Promise<void>
  }
}

/** The part of a Worker's binding to the object that the store uses. */
export interface DurableNamespace {
  idFromName(name: string): unknown
  get(id: never): { fetch(url: string, init: { method: string; body: string }): Promise<Response> }
}

type Entry = { owner: string; receipt?: string; untilMs: number }
type Asked = { method: 'claim' | 'record' | 'release'; owner: string; receipt: string; seconds: number }

const KEY = 'entry'

/**
 * The Durable Object of the store, one for each key. Cloudflare runs at most one of each and delays calls while it
 * waits for its storage, so that two claims never interleave. It deletes itself when its entry has lapsed. Export it
 * from the Worker, and bind it.
 */
export class ReplayStoreObject {
  readonly #storage: DurableStorage['storage']

  constructor(state: DurableStorage) {
    this.#storage = state.storage
  }

  async fetch(request: Request): Promise<Response> {
    const { method, ...asked } = (await request.json()) as Asked
    const entry = (await this.#storage.get(KEY)) as Entry | undefined
    const inForce = entry && entry.untilMs > Date.now() ? entry : undefined
    return Response.json(await this[method](inForce, asked))
  }

  async claim(entry: Entry | undefined, { owner, seconds }: Omit<Asked, 'method'>): Promise<Claim> {
    if (entry?.receipt !== undefined) return { status: 'handled', receipt: entry.receipt }
    if (entry) return { status: 'in_progress' }
    await this.#keep({ owner, untilMs: Date.now() + seconds * 1000 })
    return { status: 'claimed', owner }
  }

  async record(entry: Entry | undefined, { owner, receipt, seconds }: Omit<Asked, 'method'>): Promise<boolean> {
    if (entry && (entry.receipt !== undefined || entry.owner !== owner)) return false
    await this.#keep({ owner, receipt, untilMs: Date.now() + seconds * 1000 })
    return true
  }

  async release(entry: Entry | undefined, { owner }: Omit<Asked, 'method'>): Promise<boolean> {
    if (entry === undefined || entry.receipt !== undefined || entry.owner !== owner) return false
    return this.#storage.delete(KEY)
  }

  async alarm(): Promise<void> {
    const entry = (await this.#storage.get(KEY)) as Entry | undefined
    if (entry && entry.untilMs > Date.now()) await this.#storage.setAlarm(entry.untilMs)
    else await this.#storage.deleteAll()
  }

  async #keep(entry: Entry): Promise<void> {
    await this.#storage.put(KEY, entry)
    await this.#storage.setAlarm(entry.untilMs)
  }
}

/**
 * A replay store in Durable Objects, for Workers. Workers KV cannot be one: it has no conditional write, and reads
 * elsewhere may be a minute old.
 *
 * @example
 *   const replayStore = durableObjectReplayStore(env.TIDINGS_REPLAYS)
 */
export const durableObjectReplayStore = (namespace: DurableNamespace): ReplayStore => {
  const isBinding = hasMethods(namespace, 'idFromName', 'get')
  requireGiven(isBinding, 'namespace', namespace, 'the Worker’s binding to the class ReplayStoreObject')
  const ask = async <T>(key: string, asked: Asked): Promise<T> => {
    const stub = namespace.get(namespace.idFromName(key) as never)
    const response = await stub.fetch('https://replays.tidings/', { method: 'POST', body: JSON.stringify(asked) })
    if (!response.ok) throw new Error(`The Durable Object answered ${response.status}.`)
    return response.json() as Promise<T>
  }
  return {
    claim: (key, seconds) => ask(key, { method: 'claim', owner: crypto.randomUUID(), receipt: '', seconds }),
    record: (key, owner, receipt, seconds) => ask(key, { method: 'record', owner, receipt, seconds }),
    release: (key, owner) => ask(key, { method: 'release', owner, receipt: '', seconds: 0 }),
  }
}
