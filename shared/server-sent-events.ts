/** A body as it is read, here and in browsers. */
type Reader = { read(): Promise<{ done: boolean; value?: Uint8Array | undefined }> }

/**
 * The results of a GraphQL subscription, as server-sent events bring them (graphql-sse, distinct connections), until it
 * is complete or breaks off.
 *
 * @param onChunk called whenever something comes, signs of life too
 */
export async function* resultsOf(reader: Reader, onChunk: () => void = () => {}): AsyncGenerator<unknown> {
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
      const data = /^data: (.+)$/m.exec(event)?.[1]
      if (data) yield JSON.parse(data)
    }
  }
}
