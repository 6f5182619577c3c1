import type { RequestListener } from 'node:http'

/** How long requests are begun in a row before other work of the process has its turn. */
const SLICE_MS = 8

/**
 * Begins requests in the order of their arrival, in slices of a few milliseconds: however many arrive together, they do
 * not hold the event loop.
 */
export const inSlices = (handler: RequestListener): RequestListener => {
  const waiting: Parameters<RequestListener>[] = []
  let since: number | undefined

  const isOver = (): boolean => {
    if (since !== undefined) return performance.now() - since >= SLICE_MS
    since = performance.now()
    setImmediate(() => {
      since = undefined
    })
    return false
  }

  // One call for each waiting request, so that what a request does at once belongs to its slice.
  const beginNext = (): void => {
    if (isOver()) setImmediate(beginNext)
    else handler(...waiting.shift()!)
  }

  return (request, response) => {
    if (waiting.length === 0 && !isOver()) return void handler(request, response)
    waiting.push([request, response])
    setImmediate(beginNext)
  }
}
