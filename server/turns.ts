/** Items that wait, in a line for each key: the keys take turns, and the items of one key come in their order. */
export class Turns<Item> {
  /** In the order of the next turn of each key. */
  readonly #lines = new Map<string, Set<Item>>()

  #size = 0

  get size(): number {
    return this.#size
  }

  of(key: string): ReadonlySet<Item> {
    return this.#lines.get(key) ?? new Set()
  }

  get lines(): Iterable<ReadonlySet<Item>> {
    return this.#lines.values()
  }

  /** The first item of each key. */
  get firsts(): Item[] {
    return Array.from(this.lines, firstOf)
  }

  add(key: string, item: Item): void {
    const line = this.#lines.get(key) ?? new Set()
    this.#lines.set(key, line.add(item))
    this.#size += 1
  }

  /** Returns whether the item was waiting. */
  delete(key: string, item: Item): boolean {
    const line = this.#lines.get(key)
    if (!line?.delete(item)) return false
    this.#size -= 1
    if (line.size === 0) this.#lines.delete(key)
    return true
  }

  /** Takes the first item whose turn it may be; its key comes after the others. */
  take(mayBegin: (item: Item) => boolean = () => true): Item | undefined {
    return this.#takeFrom(this.#lines, mayBegin)
  }

  /** Takes the first item of the first key whose turn it may be; the key comes after the others. */
  takeOf(mayBegin: (key: string) => boolean): Item | undefined {
    for (const line of this.#lines) if (mayBegin(line[0])) return this.#takeFrom([line], () => true)
    return undefined
  }

  /** As `take`, but the keys are in the order of the ranks of their first items; equal ones take turns. */
  takeFirst(mayBegin: (item: Item) => boolean, rankOf: (item: Item) => readonly number[]): Item | undefined {
    const ranked = Array.from(this.#lines, line => ({ line, rank: rankOf(firstOf(line[1])) }))
    ranked.sort((a, b) => compareRanks(a.rank, b.rank))
    return this.#takeFrom(
      ranked.map(({ line }) => line),
      mayBegin,
    )
  }

  #takeFrom(lines: Iterable<[string, Set<Item>]>, mayBegin: (item: Item) => boolean): Item | undefined {
    for (const [key, line] of lines) {
      for (const item of line) {
        if (!mayBegin(item)) continue
        line.delete(item)
        this.#size -= 1
        this.#lines.delete(key)
        if (line.size > 0) this.#lines.set(key, line)
        return item
      }
    }
    return undefined
  }

  *[Symbol.iterator](): Generator<Item> {
    for (const line of this.#lines.values()) yield* line
  }
}

/** No line is empty. */
const firstOf = <Item>(line: ReadonlySet<Item>): Item => line.values().next().value!

export const compareRanks = (a: readonly number[], b: readonly number[]): number => {
  const at = a.findIndex((value, n) => value !== b[n])
  return at < 0 ? 0 : a[at]! - b[at]!
}
