import { isFunction, requireGiven } from '../given.ts'
import type { Claim, ReplayStore } from '../replay-store.ts'

/** Of a client of Redis 6.2 or newer, or Valkey, what the store needs: one call that runs a Lua script. */
export type EvalScript = (script: string, key: string, args: string[]) => Promise<unknown>

/** A value is `claim:OWNER` or `handled:RECEIPT`; Redis drops it when it has lapsed. Each script is atomic. */
const CLAIM = `
  local value = redis.call('GET', KEYS[1])
  if value then return value end
  redis.call('SET', KEYS[1], 'claim:' .. ARGV[1], 'PX', ARGV[2])
  return ''`
const RECORD = `
  local value = redis.call('GET', KEYS[1])
  if value and value ~= 'claim:' .. ARGV[1] then return 0 end
  redis.call('SET', KEYS[1], 'handled:' .. ARGV[3], 'PX', ARGV[2])
  return 1`
const RELEASE = `
  if redis.call('GET', KEYS[1]) ~= 'claim:' .. ARGV[1] then return 0 end
  return redis.call('DEL', KEYS[1])`

/**
 * A replay store in Redis or Valkey. How a script is run is the client's own:
 * of `redis`, `(script, key, args) => client.eval(script, { keys: [key], arguments: args })`;
 * of `ioredis`, `(script, key, args) => client.eval(script, 1, key, ...args)`.
 *
 * @param options.prefix of the keys; `tidings:` unless given
 * @throws TypeError when what is given is none of that
 */
export const redisReplayStore = (
  evalScript: EvalScript,
  { prefix = 'tidings:' }: { prefix?: string } = {},
): ReplayStore => {
  requireGiven(isFunction(evalScript), 'evalScript', evalScript, 'a function that runs a Lua script, of your client')
  requireGiven(typeof prefix === 'string', 'prefix', prefix, 'a text')
  return redisStore(evalScript, prefix)
}

const redisStore = (evalScript: EvalScript, prefix: string): ReplayStore => ({
  async claim(key, seconds): Promise<Claim> {
    const owner = crypto.randomUUID()
    const value = String((await evalScript(CLAIM, prefix + key, [owner, millisecondsOf(seconds)])) ?? '')
    if (value === '') return { status: 'claimed', owner }
    return value.startsWith('handled:') ? { status: 'handled', receipt: value.slice(8) } : { status: 'in_progress' }
  },
  record: async (key, owner, receipt, seconds) =>
    Number(await evalScript(RECORD, prefix + key, [owner, millisecondsOf(seconds), receipt])) === 1,
  release: async (key, owner) => Number(await evalScript(RELEASE, prefix + key, [owner])) === 1,
})

const millisecondsOf = (seconds: number): string => String(Math.max(1, Math.ceil(seconds * 1000)))
