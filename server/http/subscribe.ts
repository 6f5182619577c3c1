import { createHash } from 'node:crypto'
import type { ParameterizedContext } from 'koa'
import { codeOf } from '../../shared/errors.ts'
import { REQUEST_MS, unavailable } from '../database/patience.ts'
import type { AccessToken } from '../domain/permissions.ts'
import type { Service } from '../graphql/context.ts'
import { asGraphqlError, presentError } from '../graphql/errors.ts'
import type { GraphqlRequest, Task } from '../graphql/request.ts'
import { leastIdAt } from '../ids.ts'
import { Stream } from '../live/stream.ts'
import type { Log } from '../log.ts'
import type { ReaderAnswer } from '../readers/jobs.ts'
import type { Authenticated } from './authenticate.ts'
import { LARGE_BYTES } from './body.ts'

type Context = ParameterizedContext<Authenticated>

/** No delivery has it. */
const NOBODY = leastIdAt(0)

export const wantsEvents = (ctx: { get(name: string): string }): boolean =>
  /\btext\/event-stream\b/i.test(ctx.get('accept'))

/**
 * Answers a subscription with server-sent events (graphql-sse, distinct connections). Returns false for any other
 * request. A reader answers what a subscription asks, at its start and for each change.
 */
export const subscribing =
  ({ readers, tools, live }: Service, log: Log) =>
  async (ctx: Context, request: GraphqlRequest, gone: AbortSignal): Promise<boolean> => {
    const { token, requestId, giveUpAt } = ctx.state
    if (!mayBeSubscription(request)) return false
    const present = presentError(requestId, log)
    const asError = (error: unknown): string => JSON.stringify({ errors: [present(asGraphqlError(error))] })
    const ask = async (token: AccessToken, task: Task, giveUpAt: number, gone: AbortSignal) => {
      const terms = { now: tools.clock.now(), giveUpAt, gone }
      const { status, codes, body } = (await readers.ask({ ...request, token, task }, terms)) as ReaderAnswer
      if (codes.has('UNAVAILABLE')) throw unavailable()
      if (status === 204) return undefined
      const text = Buffer.concat(body).toString()
      return status === 200 ? { lines: text === '' ? [] : text.split('\n') } : { refusal: text }
    }
    const open = (): Stream => {
      ctx.respond = false
      ctx.status = 200
      return new Stream(ctx.res)
    }
    const { method, url, body } = request
    const of = JSON.stringify([token.id, method, url, body])
    const subscriber = {
      key: createHash('sha256').update(of).digest('base64'),
      token,
      answer: async (token: AccessToken, ids: string[], gone: AbortSignal) =>
        (await ask(token, { kind: 'changed', ids }, performance.now() + REQUEST_MS, gone))!,
      asError,
    }
    const since = ctx.get('last-event-id')
    try {
      // What cannot be answered is refused at once.
      const first = await ask(token, { kind: 'changed', ids: [NOBODY] }, giveUpAt, gone)
      if (!first) return false
      if ('refusal' in first) return complete(first.refusal)
      const coming = await live.ready(token.id, giveUpAt)
      try {
        const missed = since === '' ? { lines: [] } : await ask(token, { kind: 'missed', since }, giveUpAt, gone)
        if (!missed || 'refusal' in missed) return complete(missed?.refusal)
        if (!gone.aborted) live.subscribe({ ...subscriber, missed: missed.lines, stream: open() }, coming)
      } finally {
        live.left(coming)
      }
    } catch (error) {
      if (codeOf(error) === 'UNAVAILABLE') throw error
      return complete(asError(error))
    }
    return true

    function complete(result: string | undefined): true {
      open().complete(result)
      return true
    }
  }

/** Without parsing it. Of a subscription the whole request is kept, so that it can be asked again. */
const mayBeSubscription = ({ method, body }: GraphqlRequest): boolean =>
  method !== 'POST' || (body.length <= LARGE_BYTES && /subscription|\\u/.test(body))
