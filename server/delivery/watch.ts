import type { Settlement } from './queue.ts'

/** Who watches deliveries from outside: nothing here waits for it. */
export type DeliveryWatch = {
  /** An attempt has been recorded. */
  attempted(settlement: Settlement): void
  /** @param takenOver deliveries whose lease had run out under another */
  claimed(seconds: number, takenOver: number): void
  /** A batch of attempts has been recorded. */
  recorded(seconds: number): void
}
