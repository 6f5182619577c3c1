import type { Endpoint } from './lanes.ts'
import type { Settlement } from './queue.ts'

/** What this process knows about an endpoint. */
type EndpointFacts = {
  epoch: number
  hasAnswered: boolean
  /** Attempts since the last answer that occupied a place for long without an answer. */
  unanswered: number
  /** Its last answer was 429. */
  isThrottling: boolean
}

/** An attempt without an answer for this long has cost others a place. */
const LONG_MS = 1_000
const AGAIN_AND_AGAIN = 2
/** The most endpoints to remember; the least recently seen are forgotten first. */
const MOST = 20_000

/** The behaviour of endpoints towards this process: of each webhook, in the last epoch that it was sent to in. */
export const createEndpointHistory = () => {
  const history = new Map<string, EndpointFacts>()
  const probed = new Map<string, Endpoint>()

  return {
    /** Whether it gets one attempt at a time until it answers. */
    isProbed: ({ webhookId, epoch }: Endpoint): boolean => probed.get(webhookId)?.epoch === epoch,

    probed: (): Iterable<Endpoint> => probed.values(),

    hasAnswered({ webhookId, epoch }: Endpoint): boolean {
      const facts = history.get(webhookId)
      return facts?.epoch === epoch && facts.hasAnswered
    },

    judge({ webhookId, epoch }: Endpoint, { result, durationMs, outcome }: Settlement): void {
      const last = history.get(webhookId)
      if (last && last.epoch > epoch) return
      const before = last?.epoch === epoch ? last : { epoch, hasAnswered: false, unanswered: 0, isThrottling: false }
      const isLong = result.kind === 'failure' && durationMs >= LONG_MS
      const facts =
        result.kind === 'failure'
          ? { ...before, unanswered: before.unanswered + (isLong ? 1 : 0) }
          : { epoch, hasAnswered: true, unanswered: 0, isThrottling: 'holdWebhookMs' in outcome }
      history.delete(webhookId)
      history.set(webhookId, facts)
      if (facts.unanswered >= AGAIN_AND_AGAIN || facts.isThrottling) probed.set(webhookId, { webhookId, epoch })
      else probed.delete(webhookId)
      if (history.size <= MOST) return
      const [oldest] = history.keys()
      history.delete(oldest!)
      probed.delete(oldest!)
    },
  }
}
