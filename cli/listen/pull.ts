import { hostname } from 'node:os'
import { type Pulling, startPulling, type TakenDelivery } from '../../receiver/pulling.ts'
import { graphql } from '../connection/client.ts'
import type { Session } from '../connection/session.ts'
import { cellText } from '../output/output.ts'
import { idForUrl } from '../resources/webhook.ts'

/** Longer than the server waits for a delivery. */
const TIMEOUT_MS = 45_000
/** Longer than a forwarded delivery may take. */
const HERE_MS = 20_000
const AT_ONCE = 10

/** The id of the webhook that `listen --pull` registers, the same each time on one machine, in one folder. */
export const idToPull = (session: Session): Promise<string> =>
  idForUrl(session.connection.apiKey, `pull://${hostname()}${process.cwd()}`)

/**
 * Takes the deliveries of a webhook, and passes each to the receiver on this machine as it would have come from the
 * server. Its answer is the delivery's answer; without one, such as after a reset, the attempt ends as a timeout.
 */
export const pullTo = (session: Session, webhookId: string, receiverUrl: () => string): Pulling => {
  const { connection, output } = session
  let isAway = false
  return startPulling({
    webhookId,
    concurrency: AT_ONCE,
    ask: (document, variables, signal) => graphql(connection, document, variables, { timeoutMs: TIMEOUT_MS, signal }),
    answer: taken => passOn(receiverUrl(), taken),
    onError(error) {
      if (!isAway) output.warning(`${cellText((error as Error).message)} Trying again until it can.`)
      isAway = true
    },
    onReached() {
      if (isAway) output.message('The server is back.')
      isAway = false
    },
  })
}

const passOn = async (url: string, { headers, body }: TakenDelivery) => {
  try {
    const response = await fetch(url, {
      method: 'POST',
      headers,
      body,
      redirect: 'manual',
      signal: AbortSignal.timeout(HERE_MS),
    })
    return {
      status: response.status,
      headers: Object.fromEntries(response.headers),
      body: await response.text(),
    }
  } catch {
    return undefined
  }
}
