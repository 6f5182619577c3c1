import { Socket } from 'node:net'
import { compactHeap } from '../heap.ts'
import { release } from '../release.ts'
import { BODIES_FD, type FromReader, type ToReader } from './messages.ts'
import { answerQueries } from './queries.ts'

// The process of a reader.

/** The server may have ended; this process ends when it notices. */
const tell = (message: FromReader): void => void process.send?.(message, () => {})
const bodies = new Socket({ fd: BODIES_FD }).on('error', () => {})
const sendPart = (text: string) => new Promise(resolve => bodies.write(text, resolve))

// A terminal sends these signals to the whole process group; the server decides when to end.
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, () => {})
process.on('disconnect', () => process.exit())
process.once('message', (message: ToReader) => {
  if (message.kind !== 'start') return
  const { hear } = answerQueries(message, { tell, sendPart, end: () => process.exit(1) })
  process.on('message', hear)
  compactHeap()
  tell({ kind: 'ready', release })
})
