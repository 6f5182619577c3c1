import type { Heard, Queries, Start } from '../../server/readers/child.ts'
import type { FromReader, ToReader } from '../../server/readers/messages.ts'
import { answerQueries } from '../../server/readers/queries.ts'

/**
 * A reader in the process of its server: what it says and hears is copied, as between processes. It takes none of the
 * second in which a process starts, but nothing can end it in the middle of its work.
 */
export const startReaderHere = (given: Start, heard: Heard): Queries => {
  let isReady = false
  let isEnded = false
  const parts: Uint8Array[] = []
  let wanted: (() => void) | undefined
  const end = (isKilled: boolean) => {
    if (isEnded) return
    isEnded = true
    const wasReady = isReady
    isReady = false
    close()
    setImmediate(() => heard.ended({ isKilled, wasReady, said: Promise.resolve(undefined) }))
  }
  const { hear, close } = answerQueries(
    { kind: 'start', ...given },
    {
      tell(message) {
        const copied = structuredClone(message) as Exclude<FromReader, { kind: 'ready' }>
        setImmediate(() => isEnded || heard.message(copied))
      },
      async sendPart(text) {
        parts.push(Buffer.from(text))
        wanted?.()
      },
      end: () => end(false),
    },
  )
  setImmediate(() => {
    if (isEnded) return
    isReady = true
    heard.ready()
  })
  return {
    get isReady() {
      return isReady
    },
    starvedMs: 0,
    send(message: ToReader) {
      const copied = structuredClone(message)
      setImmediate(() => isEnded || hear(copied))
    },
    async receive(bytes) {
      const received: Uint8Array[] = []
      for (let left = bytes; left > 0; ) {
        const part = parts.shift()
        if (part) {
          received.push(part)
          left -= part.length
        } else await new Promise<void>(resolve => (wanted = resolve))
      }
      return received
    },
    kill: () => end(true),
  }
}
