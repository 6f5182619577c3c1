import { request } from 'undici'
import { startPulling } from '../../receiver/pulling.ts'
import type { Credentials } from '../../shared/hmac.ts'
import { signed } from './client.ts'

// Clients that pull, in a process of their own, for benchmarks: they answer 200 at once, and tell their parent which
// project reports they have had, and when.

export type StartPullers = { kind: 'start'; url: string; credentials: Credentials; webhookId: string; clients: number }

const AT_ONCE = 100
const now = (): number => performance.timeOrigin + performance.now()

let arrivals: [string, number][] = []

const start = ({ url, credentials, webhookId, clients }: StartPullers): void => {
  for (let n = 0; n < clients; n++) {
    startPulling({
      webhookId,
      concurrency: AT_ONCE,
      async ask(document, variables) {
        const { url: to, options } = signed(url, credentials, document, variables)
        const { body } = await request(to, { ...options, headersTimeout: 60_000 })
        const { data, errors } = (await body.json()) as { data: object; errors?: { message: string }[] }
        if (errors) throw new Error(errors[0]!.message)
        return data
      },
      async answer({ body }) {
        const [, reportId] = /"projectReport":\{"id":"([^"]+)"/.exec(body) ?? []
        if (reportId) arrivals.push([reportId, now()])
        return { status: 200, headers: {}, body: '' }
      },
      onError: error => console.error(error),
    })
  }
}

process.on('message', (message: StartPullers | { kind: 'arrivals' }) => {
  if (message.kind === 'start') return start(message)
  process.send!({ arrivals })
  arrivals = []
})
process.on('disconnect', () => process.exit())
process.send!({})
