import type { Settlement } from './queue.ts'

/** An observer of deliveries; nothing waits for it. */
export type DeliveryWatch = {
  /** An attempt has been recorded. */
  attempted(settlement: Settlement): void
  /** @param takenOver the number of deliveries whose lease had run out under another process */
  claimed(seconds: number, takenOver: number): void
  /** A batch of attempts has been recorded. */
  recorded(seconds: number): void
}
