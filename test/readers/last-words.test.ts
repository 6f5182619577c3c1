import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { it } from 'node:test'
import { lastWords } from '../../server/readers/last-words.ts'

const saidBy = async (script: string) => {
  const passedOn: string[] = []
  const child = spawn(process.execPath, ['--max-old-space-size=12', '--max-semi-space-size=1', '-e', script], {
    stdio: ['ignore', 'ignore', 'pipe'],
  })
  return { said: await lastWords(child.stderr, line => passedOn.push(line)), passedOn }
}

it('a process whose memory is full says so in a few words, and what it logged is passed on', async () => {
  const fill = 'console.error(JSON.stringify({ msg: "begun" })); const all = []; for (;;) all.push({ n: all.length })'
  assert.deepEqual(await saidBy(fill), { said: 'its memory was full', passedOn: ['{"msg":"begun"}\n'] })
})

it('a process that ends with nothing but its log has no last words', async () => {
  assert.deepEqual(await saidBy('console.error("{}")'), { said: undefined, passedOn: ['{}\n'] })
})

it('the first words of another end are kept', async () => {
  assert.equal((await saidBy('console.error("a library is missing")')).said, 'a library is missing')
})
