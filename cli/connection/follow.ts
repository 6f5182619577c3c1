import { setTimeout as delay } from 'node:timers/promises'
import { CliError, exitCodes } from '../errors.ts'
import { type Asked, LIVE_TIMES, openLive } from './live.ts'

type Say = { begun: () => void; back: () => void; warn: (text: string) => void }

/**
 * The results of a subscription until the signal. After a broken connection it goes on where it was: nothing is missed
 * that the server still has. Says what keeps it from that. Throws a CliError for what waiting does not mend.
 */
export async function* follow<Data>(asked: Asked, say: Say, times = LIVE_TIMES): AsyncGenerator<Data> {
  const { signal } = asked
  let lastEventId: string | undefined
  let heardAt: Date | undefined
  let isAway = false
  const onId = (id: string): void => {
    lastEventId = id
    heardAt = new Date()
  }
  while (!signal.aborted) {
    let pauseMs = times.againMs
    try {
      const results = await openLive<Data>(asked, { lastEventId, onId }, times)
      if (!heardAt) say.begun()
      else if (isAway) say.back()
      heardAt ??= new Date()
      isAway = false
      yield* results
    } catch (error) {
      if (signal.aborted) return
      if (!(error instanceof CliError) || !heardAt) throw error
      if (error.code === 'BAD_USER_INPUT' && lastEventId !== undefined) {
        lastEventId = undefined
        const since = heardAt.toISOString()
        say.warn(`${error.message} What changed since then is not shown: tidings deliveries list --since ${since}`)
      } else if (error.code === 'RATE_LIMITED') {
        pauseMs = times.limitedMs
        say.warn(`${error.message} Trying again in ${pauseMs / 1000} s; nothing is missed within 10 min.`)
      } else if (error.exitCode === exitCodes.unreachable && error.code !== 'NO_STREAM') {
        if (!isAway) say.warn(`${error.message} Still trying; nothing is missed within 10 min.`)
        isAway = true
      } else throw error
    }
    await delay(pauseMs, undefined, { signal }).catch(() => {})
  }
}
