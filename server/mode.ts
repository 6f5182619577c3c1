/**
 * What a long-lived part is doing: one of a few named modes, and which may follow which. Entering another one is an
 * error in the program, and throws.
 */
export class Mode<Name extends string> {
  #now: Name
  readonly #next: Record<Name, readonly Name[]>

  constructor(first: Name, next: Record<Name, readonly Name[]>) {
    this.#now = first
    this.#next = next
  }

  get now(): Name {
    return this.#now
  }

  enter(name: Name): void {
    if (!this.#next[this.#now].includes(name)) throw new Error(`${name} cannot follow ${this.#now}`)
    this.#now = name
  }
}
