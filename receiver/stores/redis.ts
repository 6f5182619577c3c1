import { isFunction, requireGiven, requireOptions } from '../given.ts'
import type { Claim, ReplayStore } from '../replay-store.ts'

/** One call of a client of Redis 6.2 or newer, or Valkey, that runs a Lua script. */
export type EvalScript = (script: string, key: string, args: string[]) => Promise<unknown>

/** A value is `claim:OWNER` or `handled:RECEIPT`; Redis drops it when it lapses. Each script is atomic. */
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
 * A replay store in Redis or Valkey. The argument runs a script with your client.
 *
 * @param options.prefix the prefix of the keys; by default `tidings:`
 * @throws TypeError when an argument is wrong
 * @example With the package `redis`:
 *   redisReplayStore((script, key, args) => client.eval(script, { keys: [key], arguments: args }))
 * @example With the package `ioredis`:
 *   redisReplayStore((script, key, args) => client.eval(script, 1, key, ...args))
 */
export const redisReplayStore = (evalScript: EvalScript, options: { prefix?: string } = {}): ReplayStore => {
  requireOptions(options, ['prefix'])
  const { prefix = 'tidings:' } = options
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
