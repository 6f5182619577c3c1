import type { Claim, ReplayStore } from '../replay-store.ts'

/** One requirement of a replay store. `run` rejects with an Error if the store does not meet it. */
export interface ReplayStoreCase {
  name: string
  run(): Promise<void>
}

const SHORT_SECONDS = 0.3
/** A record of so long is there when it is asked for, however slow the store. */
const ENOUGH_SECONDS = 10

/**
 * The requirements of every replay store, for any test runner.
 *
 * @param open opens a store; all cases may share one, since each uses keys of its own
 * @param options.wait waits for milliseconds; if your store takes a clock, advance that instead
 * @example
 *   for (const { name, run } of replayStoreCases(() => myStore)) test(name, run)
 */
export const replayStoreCases = (
  open: () => ReplayStore | Promise<ReplayStore>,
  { wait = later }: { wait?: (ms: number) => unknown } = {},
): ReplayStoreCase[] => {
  const lapse = async (seconds = SHORT_SECONDS) => void (await wait(seconds * 1000 + 50))
  const cases: Record<string, (store: ReplayStore, key: string) => Promise<void>> = {
    'a key is claimed once': async (store, key) => {
      ownerOf(await store.claim(key, 60))
      equal((await store.claim(key, 60)).status, 'in_progress')
    },
    'keys are claimed apart from each other': async (store, key) => {
      ownerOf(await store.claim(key, 60))
      ownerOf(await store.claim(`${key}-other`, 60))
      ownerOf(await store.claim(key.toUpperCase(), 60))
    },
    'of many claims at once one is granted': async (store, key) => {
      const claims = await Promise.all(Array.from({ length: 20 }, () => store.claim(key, 60)))
      equal(claims.filter(({ status }) => status === 'claimed').length, 1)
      equal(claims.filter(({ status }) => status === 'in_progress').length, 19)
    },
    'a key that was released is claimed again, by another owner': async (store, key) => {
      const owner = ownerOf(await store.claim(key, 60))
      equal(await store.release(key, owner), true)
      notEqual(ownerOf(await store.claim(key, 60)), owner)
    },
    'a key that was recorded is handled, and tells its receipt': async (store, key) => {
      const owner = ownerOf(await store.claim(key, 60))
      equal(await store.record(key, owner, '1795221601 a-b_c', 60), true)
      const claim = await store.claim(key, 60)
      equal(
        JSON.stringify([claim.status, claim.status === 'handled' && claim.receipt]),
        '["handled","1795221601 a-b_c"]',
      )
    },
    'a record lapses after its time': async (store, key) => {
      for (let seconds = SHORT_SECONDS; ; seconds *= 4) {
        const own = `${key}-${seconds}`
        const owner = ownerOf(await store.claim(own, 60))
        const recordedAt = Date.now()
        await store.record(own, owner, 'r', seconds)
        const { status } = await store.claim(own, 60)
        // A slow store, or one on a busy machine, may have taken longer than that: then a longer record is tried.
        const isLate = Date.now() - recordedAt >= seconds * 1000
        if (status !== 'handled' && isLate && seconds < ENOUGH_SECONDS) continue
        equal(status, 'handled')
        await lapse(seconds)
        return void ownerOf(await store.claim(own, 60))
      }
    },
    'a claim lapses after its time': async (store, key) => {
      ownerOf(await store.claim(key, SHORT_SECONDS))
      await lapse()
      ownerOf(await store.claim(key, 60))
    },
    'of many claims of a key that has lapsed one is granted': async (store, key) => {
      ownerOf(await store.claim(key, SHORT_SECONDS))
      await lapse()
      const claims = await Promise.all(Array.from({ length: 20 }, () => store.claim(key, 60)))
      equal(claims.filter(({ status }) => status === 'claimed').length, 1)
    },
    'an owner whose claim has lapsed does not release another’s': async (store, key) => {
      const late = ownerOf(await store.claim(key, SHORT_SECONDS))
      await lapse()
      ownerOf(await store.claim(key, 60))
      equal(await store.release(key, late), false)
      equal((await store.claim(key, 60)).status, 'in_progress')
    },
    'an owner whose claim has lapsed does not record in another’s place': async (store, key) => {
      const late = ownerOf(await store.claim(key, SHORT_SECONDS))
      await lapse()
      const owner = ownerOf(await store.claim(key, 60))
      equal(await store.record(key, late, 'late', 60), false)
      equal((await store.claim(key, 60)).status, 'in_progress')
      equal(await store.record(key, owner, 'r', 60), true)
    },
    'an owner whose claim has lapsed records what nobody has taken since': async (store, key) => {
      const late = ownerOf(await store.claim(key, SHORT_SECONDS))
      await lapse()
      equal(await store.record(key, late, 'late', 60), true)
      equal((await store.claim(key, 60)).status, 'handled')
    },
    'a record is not released, by its own owner either': async (store, key) => {
      const owner = ownerOf(await store.claim(key, 60))
      await store.record(key, owner, 'r', 60)
      equal(await store.release(key, owner), false)
      equal((await store.claim(key, 60)).status, 'handled')
    },
    'a record is not recorded over': async (store, key) => {
      const late = ownerOf(await store.claim(key, SHORT_SECONDS))
      await lapse()
      await store.record(key, ownerOf(await store.claim(key, 60)), 'first', 60)
      equal(await store.record(key, late, 'second', 60), false)
      const claim = await store.claim(key, 60)
      equal(claim.status === 'handled' && claim.receipt, 'first')
    },
    'an owner that never was changes nothing': async (store, key) => {
      ownerOf(await store.claim(key, 60))
      equal(await store.release(key, 'nobody'), false)
      equal(await store.record(key, 'nobody', 'r', 60), false)
      equal((await store.claim(key, 60)).status, 'in_progress')
    },
    'a receipt of 200 characters is kept whole': async (store, key) => {
      const receipt = 'x'.repeat(200)
      await store.record(key, ownerOf(await store.claim(key, 60)), receipt, 60)
      const claim = await store.claim(key, 60)
      equal(claim.status === 'handled' && claim.receipt, receipt)
    },
  }
  return Object.entries(cases).map(([name, run]) => ({
    name,
    run: async () => run(await open(), `key-${crypto.randomUUID()}`),
  }))
}

const later = (ms: number): Promise<void> => new Promise(resolve => setTimeout(resolve, ms))

const ownerOf = (claim: Claim): string => {
  if (claim?.status !== 'claimed') throw new Error(`The claim was not granted, but is ${JSON.stringify(claim)}.`)
  return claim.owner
}

const equal = (found: unknown, expected: unknown): void => {
  if (found !== expected) throw new Error(`Expected ${JSON.stringify(expected)}, found ${JSON.stringify(found)}.`)
}

const notEqual = (found: unknown, other: unknown): void => {
  if (found === other) throw new Error(`Expected another than ${JSON.stringify(other)}.`)
}
