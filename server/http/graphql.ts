import { Readable } from 'node:stream'
import type { GraphQLSchema } from 'graphql'
import type { Middleware, ParameterizedContext } from 'koa'
import { TidingsError } from '../../shared/errors.ts'
import { CarryingSignature, newMark, useSignatureOnce } from '../domain/used-signatures.ts'
import { otherWork } from '../event-loop.ts'
import {
  type Admitted,
  type Answered,
  type Answering,
  type Asked,
  answerGraphql,
  NOT_HERE,
  statusWithoutData,
} from '../graphql/answer.ts'
import { BUDGET_HERE, Budget } from '../graphql/budget.ts'
import { createContext, type Service } from '../graphql/context.ts'
import { createDocuments } from '../graphql/documents.ts'
import { asGraphqlError, presentError } from '../graphql/errors.ts'
import { nameOfOperation } from '../graphql/operation-name.ts'
import type { GraphqlRequest } from '../graphql/request.ts'
import { isSmall } from '../graphql/small.ts'
import type { Log } from '../log.ts'
import type { ReaderAnswer } from '../readers/jobs.ts'
import { type Authenticated, refuseReplay } from './authenticate.ts'
import { LARGE_BYTES, readText } from './body.ts'
import { claimOf, endClaim } from './idempotency-key.ts'
import { answerError, GRAPHQL_RESPONSE, mediaTypeFor } from './request-id.ts'
import { subscribing, wantsEvents } from './subscribe.ts'

/** An answer of this process, or of a reader. */
type Sendable = Omit<Answered, 'body'> & { body: Answered['body'] | Uint8Array[] }
type Context = ParameterizedContext<Authenticated>

/**
 * Serves GraphQL over HTTP to an authenticated request. Mutations and small queries run in this process, everything
 * else in readers.
 */
export const graphqlOverHttp = (schema: GraphQLSchema, service: Service, log: Log): Middleware<Authenticated> => {
  const documents = createDocuments(schema)
  const subscribe = subscribing(service, log)
  return async ctx => {
    const request = await requestOf(ctx)
    if (!request) return
    const gone = new AbortController()
    ctx.res.once('close', () => ctx.res.writableFinished || gone.abort())
    // The client may have left during authentication.
    if (ctx.res.closed) gone.abort()
    if (wantsEvents(ctx) && (await subscribe(ctx, request, gone.signal))) return
    const admission = new Admission(ctx, service)
    const { address, leavePlace } = ctx.state
    const one = { schema, documents, log, request, gone: gone.signal, address, leavePlace }
    const answer = await answerAnywhere(one, admission, service, ctx.state.giveUpAt).catch(async error => {
      await admission.carrying?.end(service.database.knex)
      throw error
    })
    if (admission.carrying && !(await admission.carrying.end(service.database.knex))) return refuseReplay(ctx)
    if (admission.instead) return admission.instead()
    await send(ctx, answer!)
  }
}

/** The request without HTTP; undefined for one that was refused. */
const requestOf = async (ctx: Context): Promise<GraphqlRequest | undefined> => {
  const { token, requestId, rawBody } = ctx.state
  const { url, method } = ctx
  const body = readText(ctx, rawBody)
  if (body === undefined) return undefined
  // Its hash has taken milliseconds, and parsing it takes some more.
  if (rawBody.length > LARGE_BYTES) await otherWork()
  const accept = mediaTypeFor(ctx) ?? (wantsEvents(ctx) ? GRAPHQL_RESPONSE : undefined)
  // A charset in quotes is the same charset.
  const type = ctx.headers['content-type']?.replace(/(charset=)"([^"]*)"/i, '$1$2')
  if (accept) return { url, method, headers: { accept, 'content-type': type }, body, token, requestId }
  answerError(ctx, 406, new TidingsError('BAD_USER_INPUT', REFUSALS[406]!))
  return undefined
}

/** Decides what of a request is executed in this process. */
class Admission {
  readonly #ctx: Context
  readonly #service: Service
  /** Answers without anything having been executed. */
  instead: (() => void) | undefined
  /** For a mutation: its signature, which is not marked yet. */
  carrying: CarryingSignature | undefined

  constructor(ctx: Context, service: Service) {
    this.#ctx = ctx
    this.#service = service
  }

  async admit({ operation, variables }: Asked): Promise<Admitted> {
    if (!operation) return NOT_HERE
    const { state, method } = this.#ctx
    state.operation = nameOfOperation(operation)
    if (operation.operation === 'mutation') return method === 'POST' ? this.#admitMutation() : {}
    return isSmall(operation, variables, state.token) ? {} : NOT_HERE
  }

  async #admitMutation(): Promise<Admitted> {
    const [ctx, service] = [this.#ctx, this.#service]
    const { signature, giveUpAt } = ctx.state
    const now = service.tools.clock.now()
    const mark = newMark(signature, now, now < service.sideBySideUntil)
    if (ctx.headers['idempotency-key'] === undefined) {
      this.carrying = new CarryingSignature(mark)
      return { carrying: this.carrying }
    }
    // An answer stored under a key needs no transaction.
    const isNew = await useSignatureOnce(service.database.knex, mark, giveUpAt)
    const claim = isNew ? await claimOf(ctx, service) : () => refuseReplay(ctx)
    if (typeof claim !== 'function') return { claim, markId: mark.id }
    this.instead = claim
    return NOT_HERE
  }
}

type One = Pick<Answering, 'schema' | 'documents' | 'log' | 'gone'> & {
  request: GraphqlRequest
  /** The address of the client. */
  address: string | undefined
  leavePlace: (() => void) | undefined
}

/** Answers in this process or in a reader; undefined if the admission answers instead. */
const answerAnywhere = async (
  { request, address, leavePlace, ...one }: One,
  admission: Admission,
  service: Service,
  giveUpAt: number,
): Promise<Sendable | undefined> => {
  const answerHere = (isValid: boolean) => {
    const budget = new Budget(BUDGET_HERE)
    const contextOf: Answering['contextOf'] = brought =>
      createContext(service, request.token, request.requestId, {
        ...{ ...brought, budget, address, leavePlace, gone: one.gone },
      })
    const admit = (asked: Asked) => admission.admit(asked)
    return answerGraphql(request, { ...one, budget, giveUpAt, isValid, contextOf, admit })
  }
  const here = await answerHere(false)
  if (here || admission.instead) return here
  const terms = { now: service.tools.clock.now(), giveUpAt, gone: one.gone }
  const read = await service.readers.ask(request, terms).catch(error => {
    if (error instanceof TidingsError && error.code === 'UNAVAILABLE') throw error
    return failed(request, error, one.log)
  })
  return read === 'mutation' ? answerHere(true) : { ...read, claim: undefined }
}

const send = async (ctx: Context, answer: Sendable): Promise<void> => {
  const { status, headers, codes, claim } = answer
  ctx.state.operation = answer.operation ?? ctx.state.operation
  const [code] = codes
  if (code) ctx.state.error = { code: String(code), reason: answer.reason }
  for (const [name, value] of Object.entries(headers)) ctx.set(name, value)
  const refusal = REFUSALS[status]
  if (refusal) return answerError(ctx, status, new TidingsError('BAD_USER_INPUT', refusal))
  ctx.status = status
  const isAllEvents = status === 200 && wantsEvents(ctx) && mediaTypeFor(ctx) === undefined
  if (isAllEvents) ctx.set('Content-Type', 'text/event-stream; charset=utf-8')
  const isWhole = claim !== undefined || isAllEvents || answer.body?.length === 1
  const sent = isWhole ? wholeOf(answer.body) : answer.body
  if (Array.isArray(sent)) sendInParts(ctx, sent)
  else ctx.body = isAllEvents ? `event: next\ndata: ${sent}\n\nevent: complete\ndata:\n\n` : sent
  if (!claim) return
  await endClaim(claim, codes, { status, contentType: headers['content-type'] ?? '', body: String(ctx.body) })
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

/** The answer for the error that ended a whole query. */
const failed = ({ requestId, headers }: GraphqlRequest, error: unknown, log: Log): ReaderAnswer => {
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
