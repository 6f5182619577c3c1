import { parseArgs } from 'node:util'
import { startWorlds } from '../graphql/two-worlds.ts'
import { engines } from '../support/databases.ts'
import { show } from './figures.ts'

// The random queries of `test/graphql/noninterference.test.ts`, as many as a night has time for: each is asked where
// all data is and where only what its token sees is, and both must answer alike. Ends with an error at the first that
// differ.
//
//   npm run bench -- two-worlds [--count 100000] [--seed 1] [--at-once 4] [--engine sqlite]

const { values: options } = parseArgs({
  options: {
    count: { type: 'string', default: '100000' },
    /** Of the first query; each later one is of the next seed. */
    seed: { type: 'string', default: '1' },
    'at-once': { type: 'string', default: '4' },
    engine: { type: 'string', default: 'sqlite' },
  },
})
const TOLD_EACH = 10_000

for (const engine of engines) {
  if (!engine.startsWith(options.engine)) continue
  const worlds = await startWorlds(engine)
  const kinds = new Map<string, number>()
  let asked = 0
  let compared = 0
  const tell = () =>
    console.log(
      `${engine}: ${asked} random queries, ${compared} answers compared, all alike: ` +
        [...kinds].map(([kind, count]) => `${kind} ${show((100 * count) / compared)} %`).join(', '),
    )
  const kindOf = (text: string): string => {
    const { errors } = JSON.parse(text) as { errors?: { extensions: { code: string } }[] }
    return errors?.[0]?.extensions.code ?? 'answered'
  }
  const ask = async (): Promise<void> => {
    while (asked < Number(options.count)) {
      for (const text of await worlds.randomlyAlike(Number(options.seed) + asked++)) {
        compared += 1
        kinds.set(kindOf(text), (kinds.get(kindOf(text)) ?? 0) + 1)
        if (compared % TOLD_EACH === 0) tell()
      }
    }
  }
  try {
    await Promise.all(Array.from({ length: Number(options['at-once']) }, ask))
    tell()
  } finally {
    await worlds.stop()
  }
}
