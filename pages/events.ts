/** The results of a subscription, as server-sent events bring them (graphql-sse, distinct connections). */
export async function* resultsOf(body: ReadableStream<Uint8Array>): AsyncGenerator<unknown> {
  let text = ''
  for await (const chunk of body.pipeThrough(new TextDecoderStream() as never) as ReadableStream<string>) {
    text += chunk
    const events = text.split('\n\n')
    text = events.pop()!
    for (const event of events) {
      if (/^event: complete$/m.test(event)) return
      const data = /^data: (.+)$/m.exec(event)?.[1]
      if (data) yield JSON.parse(data)
    }
  }
}
