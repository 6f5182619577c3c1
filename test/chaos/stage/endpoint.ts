import { once } from 'node:events'
import { createServer } from 'node:http'
import { text } from 'node:stream/consumers'
import { setTimeout as wait } from 'node:timers/promises'
import { freePort } from '../../support/ports.ts'

/** A request as an endpoint saw it. Times in epoch milliseconds. */
export type Arrival = {
  /** The `eventId`, which is the delivery's id. */
  id: string
  eventType: string
  /** The project report that the event is about. */
  reportId: string | undefined
  at: number
  /** The status that was answered, and when it was written; unset while there is none. */
  status?: number
  answeredAt?: number
}

/** What is answered; 'hang' is never to answer. */
export type Reply = { status: number; headers?: Record<string, string>; afterMs?: number } | 'hang'

/** When the server handed over what a client passes on: the client may have stood still since. */
export const BEGUN_AT = 'begun-at'

/** The body of every answer. */
export const ANSWER = 'as seen at the endpoint'

export type Endpoint = {
  url: string
  /** All requests but pings, oldest first. */
  arrivals: Arrival[]
  pings: Arrival[]
  /** Arrivals of each delivery. */
  byId(): Map<string, Arrival[]>
  /** Deliveries that came again after they had been answered 2XX. */
  sentAgain(): Arrival[]
  close(): Promise<void>
}

/**
 * An endpoint on this machine. `answer` gets each delivery and the number of its earlier arrivals; pings are answered
 * 200 at once unless `answerPing` says otherwise.
 */
export const startEndpoint = async (
  answer: (arrival: Arrival, before: number) => Reply | Promise<Reply> = () => ({ status: 200 }),
  answerPing: (arrival: Arrival) => Reply | Promise<Reply> = () => ({ status: 200 }),
): Promise<Endpoint> => {
  const arrivals: Arrival[] = []
  const pings: Arrival[] = []
  const times = new Map<string, number>()
  const server = createServer(async (request, response) => {
    response.on('error', () => {})
    const at = Number(request.headers[BEGUN_AT] ?? Date.now())
    const body = await text(request).catch(() => '')
    // Its sender was killed.
    if (!request.complete || body === '') return
    const { eventId, eventType, payload } = JSON.parse(body)
    const arrival: Arrival = { id: eventId, eventType, reportId: payload.projectReport?.id, at }
    const isPing = arrival.eventType === 'ping'
    ;(isPing ? pings : arrivals).push(arrival)
    const before = times.get(arrival.id) ?? 0
    times.set(arrival.id, before + 1)
    const reply = await (isPing ? answerPing(arrival) : answer(arrival, before))
    if (reply === 'hang') return
    if (reply.afterMs) await wait(reply.afterMs, undefined, { ref: false })
    if (response.destroyed) return
    response.writeHead(reply.status, reply.headers).end(ANSWER)
    arrival.status = reply.status
    arrival.answeredAt = Date.now()
  })
  const port = await freePort()
  server.listen(port, '127.0.0.1')
  await once(server, 'listening')
  const byId = () => Map.groupBy(arrivals, ({ id }) => id)
  return {
    url: `http://127.0.0.1:${port}/`,
    arrivals,
    pings,
    byId,
    sentAgain: () =>
      [...byId().values()].flatMap(list =>
        list.filter((one, index) =>
          list.slice(0, index).some(it => it.status! >= 200 && it.status! < 300 && it.answeredAt! < one.at),
        ),
      ),
    close: () =>
      new Promise(resolve => {
        server.close(() => resolve())
        server.closeAllConnections()
      }),
  }
}
