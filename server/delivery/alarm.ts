export type Alarm = {
  /** Rings in `ms` at the latest. */
  setIn(ms: number): void
  clear(): void
  /** Stops the alarm for good. */
  stop(): void
}

/** A timer that rings once, at the earliest of the times it is set to. */
export const createAlarm = (ring: () => void): Alarm => {
  let timer: NodeJS.Timeout | undefined
  let ringsAt = Number.POSITIVE_INFINITY

  const clear = (): void => {
    clearTimeout(timer)
    ringsAt = Number.POSITIVE_INFINITY
  }

  return {
    setIn(ms) {
      const at = performance.now() + ms
      if (ringsAt <= at) return
      clearTimeout(timer)
      ringsAt = at
      timer = setTimeout(() => {
        ringsAt = Number.POSITIVE_INFINITY
        ring()
      }, ms)
    },
    clear,
    stop() {
      clear()
      ringsAt = Number.NEGATIVE_INFINITY
    },
  }
}
