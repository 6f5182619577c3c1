import { setTimeout as wait } from 'node:timers/promises'
import { Agent, request } from 'undici'

// Requests /livez every 10 ms from a process of its own, and reports the longest time without an answer since the last
// report, including the present wait.

export type Ask = { url: string }

const EVERY_MS = 10
let url: string | undefined
let dispatcher = new Agent({ connections: 1, headersTimeout: 0 })
let longestMs = 0
let since: number | undefined

const poll = async (): Promise<void> => {
  for (;;) {
    await wait(EVERY_MS)
    if (url === undefined) continue
    since ??= performance.now()
    const asked = url
    try {
      const { statusCode, body } = await request(new URL('/livez', asked), { dispatcher })
      await body.dump()
      if (statusCode !== 200 || asked !== url || since === undefined) continue
      longestMs = Math.max(longestMs, performance.now() - since)
      since = undefined
    } catch {}
  }
}

process.on('message', (ask: Ask) => {
  if (ask.url !== url) {
    void dispatcher.destroy()
    dispatcher = new Agent({ connections: 1, headersTimeout: 0 })
    since = undefined
  }
  url = ask.url
  const underWayMs = since === undefined ? 0 : performance.now() - since
  process.send!(Math.max(longestMs, underWayMs))
  longestMs = 0
})
process.on('disconnect', () => process.exit())
process.send!('ready')
void poll()
