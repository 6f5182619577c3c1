import { getHeapStatistics } from 'node:v8'
import { otherWork } from '../../server/event-loop.ts'
import { Pace } from '../../server/graphql/pace.ts'

// In what order requests end, while there is memory and while it is tight, as JSON.

let nowMs = 0
performance.now = () => nowMs

const inOrder = async (): Promise<string[]> => {
  const done: string[] = []
  const work = async (name: string, beforeMs: number, turns: number): Promise<void> => {
    const pace = new Pace()
    nowMs += beforeMs
    await pace.nextTurn()
    for (let n = 0; n < turns; n++) {
      nowMs += 4
      await pace.nextTurn()
    }
    done.push(name)
    pace.end()
  }
  const works = [work('largest', 60, 12)]
  await otherWork()
  works.push(work('later', 20, 3))
  await otherWork()
  works.push(work('small', 0, 1))
  await Promise.all(works)
  return done
}

/** One that was over while it waited for something else, and one that could not go on before. */
const afterLargest = async (): Promise<string[]> => {
  const done: string[] = []
  const largest = new Pace()
  nowMs += 60
  await largest.nextTurn()
  const later = new Pace()
  nowMs += 20
  const waiting = later.nextTurn().then(() => done.push('later'))
  for (let n = 0; n < 20; n++) await otherWork()
  done.push('largest')
  largest.end()
  await waiting
  later.end()
  return done
}

const loose = await inOrder()
const filled: string[][] = []
const isFull = () => getHeapStatistics().used_heap_size > 0.7 * getHeapStatistics().heap_size_limit
while (!isFull()) filled.push(Array.from({ length: 10_000 }, (_, n) => `${n}`))
const tight = await inOrder()
console.log(JSON.stringify({ loose, tight, afterLargest: await afterLargest(), filled: filled.length }))
