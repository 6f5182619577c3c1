import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { setTimeout as wait } from 'node:timers/promises'
import type { Credentials } from '../../shared/hmac.ts'
import { type DatabaseProxy, type Pattern, startProxy } from '../chaos/proxy.ts'
import { type GraphqlAnswer, sendGraphql, startTestServer, type TestServer } from '../support/server.ts'

export type TwoServers = {
  /** Its way to the database is the proxy. */
  stopped: TestServer
  other: TestServer
  proxy: DatabaseProxy
  admin: Credentials & { id: string }
  byStopped(document: string, variables?: object, as?: Credentials): Promise<GraphqlAnswer>
  byOther(document: string, variables?: object, as?: Credentials): Promise<GraphqlAnswer>
  stop(): Promise<void>
}

/** Two servers on one database of the MySQL family, one of which can be stopped at a statement. */
export const startTwoServers = async (engine: string, more: Record<string, string> = {}): Promise<TwoServers> => {
  const env = {
    TIDINGS_MASTER_KEY: randomBytes(32).toString('base64'),
    TIDINGS_LOG_LEVEL: 'silent',
    TIDINGS_RATE_LIMIT: '0',
    ...more,
  }
  let direct = ''
  let proxy: DatabaseProxy | undefined
  const stopped = await startTestServer(engine, {
    env: { ...env, TIDINGS_ROLES: 'api' },
    by: async url => {
      direct = url
      proxy = await startProxy(url)
      return proxy.url
    },
  })
  const other = await startTestServer(engine, { env: { ...env, TIDINGS_ROLES: 'api,delivery' }, url: direct })
  const admin = await stopped.token()
  return {
    stopped,
    other,
    proxy: proxy!,
    admin,
    byStopped: (document, variables, as = admin) => sendGraphql(stopped.url, as, document, variables),
    byOther: (document, variables, as = admin) => sendGraphql(other.url, as, document, variables),
    async stop() {
      await other.stop()
      await stopped.stop()
      proxy!.close()
    },
  }
}

/** After this time the other action counts as waiting for a lock of the held statement. */
const MEANWHILE_MS = 700

/**
 * Holds `act` at its first matching statement while another action runs.
 *
 * @param options.withinMs for an action that waits for no lock and is only slow
 * @returns `hadHappened`: whether the other action finished before `act` continued
 */
export const heldAt = async <A, B>(
  proxy: DatabaseProxy,
  pattern: Pattern,
  act: () => Promise<A>,
  meanwhile: () => Promise<B>,
  { withinMs = MEANWHILE_MS }: { withinMs?: number } = {},
): Promise<{ acted: A; happened: B; hadHappened: boolean }> => {
  const hold = proxy.hold(pattern)
  try {
    const acting = act()
    const held = await Promise.race([hold.caught, acting.then(() => undefined)])
    assert.ok(held, `no statement came that matches ${pattern}`)
    const happening = meanwhile()
    const hadHappened = await Promise.race([happening.then(() => true), wait(withinMs, false)])
    hold.end()
    const [acted, happened] = await Promise.all([acting, happening])
    return { acted, happened, hadHappened }
  } finally {
    hold.end()
  }
}
