import { Gauge, type Registry } from 'prom-client'

/** The most webhooks reported; the others appear only in the sums. */
const MOST = 100
const MINUTE_MS = 60_000
const MINUTES = 10
/** The most webhooks counted in one minute: the first ones. */
const MOST_COUNTED = 10_000

type Counts = { delivered: number; failed: number }

/** The attempts of the webhooks that failed most recently, in bounded memory. */
export const worstWebhooks = (registry: Registry, now = () => performance.now()) => {
  const minutes: { since: number; of: Map<string, Counts> }[] = []

  const current = (): Map<string, Counts> => {
    const last = minutes.at(-1)
    if (last && now() - last.since < MINUTE_MS) return last.of
    minutes.push({ since: now(), of: new Map() })
    return minutes.at(-1)!.of
  }

  const worst = (): [string, Counts][] => {
    while (minutes.length > 0 && now() - minutes[0]!.since > MINUTES * MINUTE_MS) minutes.shift()
    const sums = new Map<string, Counts>()
    for (const { of } of minutes) {
      for (const [id, { delivered, failed }] of of) {
        const sum = sums.get(id) ?? { delivered: 0, failed: 0 }
        sums.set(id, { delivered: sum.delivered + delivered, failed: sum.failed + failed })
      }
    }
    const failing = [...sums].filter(([, { failed }]) => failed > 0)
    return failing.sort(([, a], [, b]) => b.failed - a.failed).slice(0, MOST)
  }

  new Gauge({
    name: 'tidings_webhook_attempts',
    help:
      `Attempts of the last ${MINUTES} minutes, of the ${MOST} webhooks with the most failures; webhooks without ` +
      'failures are left out.',
    labelNames: ['webhook_id', 'result'],
    registers: [registry],
    collect() {
      this.reset()
      for (const [webhook_id, { delivered, failed }] of worst()) {
        this.set({ webhook_id, result: 'delivered' }, delivered)
        this.set({ webhook_id, result: 'failed' }, failed)
      }
    },
  })

  return {
    attempted(webhookId: string, isDelivered: boolean): void {
      const counted = current()
      const counts = counted.get(webhookId) ?? { delivered: 0, failed: 0 }
      if (counted.size === MOST_COUNTED && !counted.has(webhookId)) return
      counted.set(webhookId, counts)
      counts[isDelivered ? 'delivered' : 'failed'] += 1
    },
  }
}
