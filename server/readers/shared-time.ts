/** Milliseconds in which something ran, shared among what ran at once: beside others, one is not to blame for all. */
export class SharedTime {
  readonly #clock: () => number
  #running = 0
  #sharedMs = 0
  #at = 0

  constructor(clock: () => number) {
    this.#clock = clock
  }

  /** Returns what `since` takes. */
  begin(): number {
    const from = this.#read()
    this.#running += 1
    return from
  }

  /** Returns the share of one that ends. */
  end(from: number): number {
    const share = this.since(from)
    this.#running -= 1
    return share
  }

  /** The share so far of one that runs. */
  since(from: number): number {
    return this.#read() - from
  }

  #read(): number {
    const now = this.#clock()
    if (this.#running > 0) this.#sharedMs += (now - this.#at) / this.#running
    this.#at = now
    return this.#sharedMs
  }
}
