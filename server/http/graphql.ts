import { Readable } from 'node:stream'
import type { GraphQLSchema } from 'graphql'
import type { Middleware } from 'koa'
import { TidingsError } from '../../shared/errors.ts'
import { REQUEST_MS } from '../database/patience.ts'
import { otherWork } from '../database/turn.ts'
import { CarryingSignature, newMark, useSignatureOnce } from '../domain/used-signatures.ts'
import {
  type Admitted,
  type Answered,
  type Asked,
  answerGraphql,
  NOT_HERE,
  statusWithoutData,
} from '../graphql/answer.ts'
import { BUDGET_HERE, Budget } from '../graphql/budget.ts'
import type { Service } from '../graphql/context.ts'
import { createDocuments } from '../graphql/documents.ts'
import { asGraphqlError, presentError } from '../graphql/errors.ts'
import { fieldAnswerOf, type ReadField } from '../graphql/field-answers.ts'
import { nameOfOperation } from '../graphql/operation-name.ts'
import type { GraphqlRequest } from '../graphql/request.ts'
import { isSmall } from '../graphql/small.ts'
import type { Log } from '../log.ts'
import type { ReaderAnswer, Terms } from '../readers/readers.ts'
import { type Authenticated, refuseReplay } from './authenticate.ts'
import { LARGE_BYTES, readText } from './body.ts'
import { claimOf, endClaim } from './idempotency-key.ts'
import { answerError, GRAPHQL_RESPONSE, mediaTypeFor } from './request-id.ts'
import { subscribing, wantsEvents } from './subscribe.ts'

/** An answer of this process, or of a reader. */
type Sendable = Omit<Answered, 'body'> & { body: Answered['body'] | Uint8Array[] }

/**
 * Serves GraphQL over HTTP to an authenticated request. Mutations and small queries run in this process, everything
 * else in readers.
 */
export const graphqlOverHttp = (schema: GraphQLSchema, service: Service, log: Log): Middleware<Authenticated> => {
  const documents = createDocuments(schema)
  const subscribe = subscribing(service, log)
  const { knex } = service.database
  return async ctx => {
    const { token, requestId, rawBody, signature, giveUpAt } = ctx.state
    const { url, method } = ctx
    const body = readText(ctx, rawBody)
    if (body === undefined) return
    // Its hash has taken milliseconds, and parsing it takes some more.
    if (rawBody.length > LARGE_BYTES) await otherWork()
    const isForEvents = wantsEvents(ctx)
    const accept = mediaTypeFor(ctx) ?? (isForEvents ? GRAPHQL_RESPONSE : undefined)
    if (!accept) return answerError(ctx, 406, new TidingsError('BAD_USER_INPUT', REFUSALS[406]!))
    // A charset in quotes is the same charset.
    const type = ctx.headers['content-type']?.replace(/(charset=)"([^"]*)"/i, '$1$2')
    const request = { url, method, headers: { accept, 'content-type': type }, body, token, requestId }
    const gone = new AbortController()
    ctx.res.once('close', () => gone.abort())
    // The client may have left during authentication.
    if (ctx.res.closed) gone.abort()
    if (isForEvents && (await subscribe(ctx, request, gone.signal))) return
    const state: {
      /** Answers without anything having been executed. */
      instead?: () => void
      /** For a mutation: its signature, which is not marked yet. */
      carrying?: CarryingSignature
    } = {}

    const admitMutation = async (): Promise<Admitted> => {
      const now = service.tools.clock.now()
      const mark = newMark(signature, now, now < service.sideBySideUntil)
      if (ctx.headers['idempotency-key'] === undefined) {
        state.carrying = new CarryingSignature(mark)
        return { carrying: state.carrying }
      }
      // An answer stored under a key needs no transaction.
      const isNew = await useSignatureOnce(knex, mark, giveUpAt)
      const claim = isNew ? await claimOf(ctx, service) : () => refuseReplay(ctx)
      if (typeof claim !== 'function') return { claim, markId: mark.id }
      state.instead = claim
      return NOT_HERE
    }
    const admit = async ({ operation, variables }: Asked): Promise<Admitted> => {
      if (!operation) return NOT_HERE
      ctx.state.operation = nameOfOperation(operation)
      if (operation.operation === 'mutation') return method === 'POST' ? admitMutation() : {}
      return isSmall(operation, variables, token) ? {} : NOT_HERE
    }
    const readField: ReadField = async (field, outcome) => {
      const gone = new AbortController().signal
      const terms = { made: { [field]: outcome }, giveUpAt: performance.now() + REQUEST_MS, gone }
      const asked = service.readers.ask({ ...request, field }, { now: service.tools.clock.now(), ...terms })
      const read = await asked.catch(error => {
        throw isUnavailable(error) ? notRead() : error
      })
      return fieldAnswerOf(field, read as ReaderAnswer)
    }
    const answerHere = (isValid: boolean) => {
      const budget = new Budget(BUDGET_HERE)
      const { signal } = gone
      return answerGraphql(request, {
        schema,
        service,
        log,
        documents,
        budget,
        giveUpAt,
        gone: signal,
        isValid,
        readField,
        admit,
      })
    }
    const ask = (terms: Partial<Terms>) =>
      service.readers.ask(request, { now: service.tools.clock.now(), giveUpAt, gone: gone.signal, ...terms })
    const readElsewhere = async (): Promise<Sendable | undefined> => {
      const read = await ask({}).catch(error => {
        if (isUnavailable(error)) throw error
        return told(request, error, log)
      })
      return read === 'mutation' ? answerHere(true) : { ...read, claim: undefined, made: undefined }
    }
    /** A client that left may repeat the request under its Idempotency-Key. */
    const answerMade = async ({ claim, made }: Sendable): Promise<Sendable> => {
      const terms = { made, giveUpAt: performance.now() + REQUEST_MS, gone: new AbortController().signal }
      const read = await ask(terms).catch(error => told(request, isUnavailable(error) ? notRead() : error, log))
      return { ...(read as ReaderAnswer), claim, made: undefined }
    }

    const answerFirst = async (): Promise<Sendable | undefined> =>
      (await answerHere(false)) ?? (state.instead ? undefined : await readElsewhere())
    const first = await answerFirst().catch(async error => {
      await state.carrying?.end(knex)
      throw error
    })
    if (state.carrying && !(await state.carrying.end(knex))) return refuseReplay(ctx)
    if (state.instead) return state.instead()
    const answer = first!.made ? await answerMade(first!) : first!
    const { status, headers, codes, claim } = answer
    ctx.state.operation = answer.operation ?? ctx.state.operation
    const [code] = codes
    if (code) ctx.state.told = { code: String(code), reason: answer.reason }
    for (const [name, value] of Object.entries(headers)) ctx.set(name, value)
    const refusal = REFUSALS[status]
    if (refusal) return answerError(ctx, status, new TidingsError('BAD_USER_INPUT', refusal))
    ctx.status = status
    const isAllEvents = status === 200 && isForEvents && mediaTypeFor(ctx) === undefined
    if (isAllEvents) ctx.set('Content-Type', 'text/event-stream; charset=utf-8')
    const isWhole = claim !== undefined || isAllEvents || answer.body?.length === 1
    const sent = isWhole ? wholeOf(answer.body) : answer.body
    if (Array.isArray(sent)) sendInParts(ctx, sent)
    else ctx.body = isAllEvents ? `event: next\ndata: ${sent}\n\nevent: complete\ndata:\n\n` : sent
    if (!claim) return
    await endClaim(claim, codes, { status, contentType: headers['content-type'] ?? '', body: String(ctx.body) })
  }
}

const wholeOf = (body: Sendable['body']) => (Array.isArray(body) ? Buffer.concat(body) : body)

/** Sends a body part by part: each leaves memory when it is on its way, and others have their turn in between. */
const sendInParts = (ctx: { body: unknown; length: number | undefined }, parts: Uint8Array[]): void => {
  ctx.body = Readable.from(inTurns(parts), { objectMode: false })
  ctx.length = parts.reduce((sum, { length }) => sum + length, 0)
}

async function* inTurns(parts: Uint8Array[]): AsyncGenerator<Uint8Array> {
  for (let part = parts.shift(); part; part = parts.shift()) {
    yield part
    await otherWork()
  }
}

const isUnavailable = (error: unknown): boolean => error instanceof TidingsError && error.code === 'UNAVAILABLE'

const notRead = (): TidingsError =>
  new TidingsError(
    'INTERNAL_SERVER_ERROR',
    'The change was made, but its answer could not be read in time: read it with a query.',
  )

/** The answer for the error that ended a whole query. */
const told = ({ requestId, headers }: GraphqlRequest, error: unknown, log: Log): ReaderAnswer => {
  const shown = presentError(requestId, log)(asGraphqlError(error))
  const codes = new Set([shown.extensions.code])
  return {
    status: statusWithoutData(headers.accept, codes),
    headers: { 'content-type': headers.accept! },
    codes,
    body: [Buffer.from(JSON.stringify({ errors: [shown] }))],
  }
}

/** The messages for statuses that graphql-http returns without a body. */
const REFUSALS: Record<number, string> = {
  405: 'Send a query by POST or GET, and a mutation by POST.',
  406: 'Accept must allow application/graphql-response+json or application/json, in UTF-8.',
  415: 'Content-Type must be application/json, in UTF-8.',
}
