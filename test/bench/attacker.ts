import { setTimeout as wait } from 'node:timers/promises'
import { Agent, request } from 'undici'
import { startChild } from './child.ts'
import { signed } from './client.ts'
import { type Attack, attacks, type Prey, type Sent } from './documents.ts'

// The attackers of `isolation`, in a process of their own. In life they have machines of their own; here part of what
// is measured is what they do themselves.

export type Ask = { prey: Prey; name: string; url: string; windowMs: number; patienceMs: number }
/** Clients that each send their requests one after the other, and again from the first, until the window ends. */
export type Flood = { clients: Sent[][]; url: string; windowMs: number }
export type Struck = {
  answer: string
  /** Of the first round, if it is made of requests. */
  tookMs: number | undefined
  bytes: number
  /** Answers that say that the attack itself is wrong. */
  faults: string[]
}

const faults = new Set<string>()
const bare = await startChild('bare-server.ts')

/** The result of one client. */
type Answered = { what: string; tookMs: number; bytes: number }

/** Sends a request as a client that never parses the answer, and may hang up earlier. */
const sendOne = async (base: string, sent: Sent, goneAfterMs: number): Promise<Answered> => {
  const dispatcher = new Agent({ connections: 1, headersTimeout: 0, bodyTimeout: 0 })
  const startedAt = performance.now()
  let bytes = 0
  let head = ''
  let tail = ''
  let what: string
  try {
    const { url, options } = signed(base, sent.as, sent.query, sent.variables ?? {})
    const signal = AbortSignal.timeout(Math.ceil(goneAfterMs))
    const { statusCode, body } = await request(url, { ...options, dispatcher, signal })
    for await (const chunk of body as AsyncIterable<Buffer>) {
      bytes += chunk.length
      const part = chunk.toString('latin1')
      if (head.length < 4_096) head += part
      tail = (tail + part).slice(-1_024)
    }
    const code = /"code":"(\w+)"/.exec(head + tail)?.[1]
    if (code === 'BAD_USER_INPUT' || statusCode === 400) faults.add(head.slice(0, 200))
    what =
      code && /^\{"errors"/.test(head) ? `${statusCode} ${code}` : code ? `${statusCode} (${code})` : `${statusCode}`
  } catch (error) {
    const { name, code, message } = error as { name: string; code?: string; message: string }
    what = name === 'TimeoutError' ? 'none' : (code ?? message)
  } finally {
    await dispatcher.destroy()
  }
  return { what, tookMs: performance.now() - startedAt, bytes }
}

/** Repeats an attack until the window ends; returns the time of its first round. */
const strike = async (
  { requests = [], hangUpMs, isOnce, run, isElsewhere }: Attack,
  { url, windowMs, patienceMs }: Ask,
): Promise<Struck> => {
  faults.clear()
  const startedAt = performance.now()
  const windowEnd = () => wait(Math.max(0, windowMs - (performance.now() - startedAt)))
  if (run) {
    const answer = await run(isElsewhere ? (bare.first as string) : url)
    await windowEnd()
    return { answer, tookMs: undefined, bytes: 0, faults: [] }
  }
  const rounds: Answered[][] = []
  do {
    rounds.push(await Promise.all(requests.map(sent => sendOne(url, sent, hangUpMs ?? patienceMs))))
  } while (!isOnce && performance.now() - startedAt < windowMs)
  await windowEnd()
  const kinds = new Map<string, number>()
  for (const { what } of rounds.flat()) kinds.set(what, (kinds.get(what) ?? 0) + 1)
  const answers = [...kinds].map(([what, count]) => (count > 1 ? `${count} × ${what}` : what)).join(', ')
  return {
    answer: hangUpMs === undefined ? answers : `${answers} (gone after ${hangUpMs / 1000} s)`,
    tookMs: Math.max(...rounds[0]!.map(({ tookMs }) => tookMs)),
    bytes: Math.max(...rounds.flat().map(({ bytes }) => bytes)),
    faults: [...faults],
  }
}

/** Each request has a connection of its own. Returns the number of answers of each kind. */
const flood = async ({ clients, url, windowMs }: Flood): Promise<Record<string, number>> => {
  faults.clear()
  const kinds: Record<string, number> = {}
  const until = performance.now() + windowMs
  const repeat = async (sents: Sent[]): Promise<void> => {
    for (let n = 0, leftMs = windowMs; leftMs > 0; n++, leftMs = until - performance.now()) {
      const { what } = await sendOne(url, sents[n % sents.length]!, leftMs)
      kinds[what] = (kinds[what] ?? 0) + 1
    }
  }
  await Promise.all(clients.map(repeat))
  return kinds
}

process.on('message', async (ask: Ask | Flood) => {
  if ('clients' in ask) return process.send!({ kinds: await flood(ask), faults: [...faults] })
  const attack = attacks(ask.prey).find(({ name }) => name === ask.name)!
  process.send!(await strike(attack, ask))
})
process.on('disconnect', () => process.exit())
process.send!('ready')
