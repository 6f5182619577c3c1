import { createInterface } from 'node:readline'
import type { Readable } from 'node:stream'

const OUT_OF_MEMORY = /heap out of memory|heap limit/
const MOST_CHARACTERS = 500

/**
 * Passes on what a reader logs, which is a JSON object a line. Resolves to what else it wrote, once it has ended, or
 * undefined: V8 writes many lines when a heap is full, which become one.
 */
export const lastWords = async (stderr: Readable, passOn: (line: string) => void): Promise<string | undefined> => {
  let said = ''
  let isOutOfMemory = false
  const lines = createInterface({ input: stderr })
  lines.on('line', line => {
    if (line.startsWith('{')) return passOn(`${line}\n`)
    isOutOfMemory ||= OUT_OF_MEMORY.test(line)
    if (said.length < MOST_CHARACTERS) said += `${line.slice(0, MOST_CHARACTERS)}\n`
  })
  await new Promise(resolve => lines.once('close', resolve))
  return isOutOfMemory ? 'its memory was full' : said.trim() || undefined
}
