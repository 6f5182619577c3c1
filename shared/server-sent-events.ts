/** The part of a body's reader that is used, in Node and in browsers. */
type Reader = { read(): Promise<{ done: boolean; value?: Uint8Array | undefined }> }

/** `onChunk` is called for every chunk, keep-alives included; `onId` for each id, before its result if it has one. */
type Heard = { onChunk?: () => void; onId?: (id: string) => void }

/**
 * Yields the results of a GraphQL subscription from server-sent events (graphql-sse, distinct connections) until the
 * subscription completes or the connection breaks. Throws the reader's error.
 */
export async function* resultsOf(
  reader: Reader,
  { onChunk = () => {}, onId = () => {} }: Heard = {},
): AsyncGenerator<unknown> {
  const decoder = new TextDecoder()
  let text = ''
  for (;;) {
    const { done, value } = await reader.read()
    if (done) return
    onChunk()
    text += decoder.decode(value, { stream: true })
    const events = text.split('\n\n')
    text = events.pop()!
    for (const event of events) {
      if (/^event: complete$/m.test(event)) return
      const id = /^id: (.+)$/m.exec(event)?.[1]
      if (id !== undefined) onId(id)
      const data = /^data: (.+)$/m.exec(event)?.[1]
      if (data) yield JSON.parse(data)
    }
  }
}
