import { setTimeout as sleep } from 'node:timers/promises'
import { execute } from '@graphql-tools/executor'
import {
  type DocumentNode,
  type ExecutionArgs,
  type ExecutionResult,
  type GraphQLError,
  type GraphQLSchema,
  getOperationAST,
  Kind,
  type OperationDefinitionNode,
} from 'graphql'
import { createHandler, parseRequestParams, type RequestParams } from 'graphql-http'
import { badInput, TidingsError } from '../../shared/errors.ts'
import { RETRY_AFTER_S } from '../database/patience.ts'
import type { Claim } from '../domain/idempotency.ts'
import type { Log } from '../log.ts'
import { Mode } from '../mode.ts'
import { inSpan } from '../tracing/tracing.ts'
import { checkJson } from './body-limits.ts'
import { BUDGET, type Budget, overspent } from './budget.ts'
import type { Carried, QueryContext } from './context.ts'
import type { Documents } from './documents.ts'
import { asGraphqlError, isUnavailable, presentError } from './errors.ts'
import { nameOfOperation } from './operation-name.ts'
import { type GraphqlAnswer, type GraphqlRequest, hungUp } from './request.ts'
import { variablesNotGiven } from './variables.ts'

/** The answer and its metadata. */
export type Answered = GraphqlAnswer & {
  /** The codes of all its errors. */
  codes: Set<unknown>
  /** Why it is refused as not authenticated, if it is. */
  reason?: string | undefined
  /** The operation's name (`nameOfOperation`), if another process has determined it. */
  operation?: string | undefined
  claim: Claim | undefined
}

/** The operation that was found; undefined if the document is not known yet and takes long to parse. */
export type Asked = { operation: OperationDefinitionNode | undefined; variables: Record<string, unknown> | null }

export type Answering = {
  schema: GraphQLSchema
  /** The context of an admitted operation. */
  contextOf(admitted: Brought): QueryContext
  log: Log
  documents: Documents
  budget: Budget
  /** Until when a query is repeated while the database is unavailable, by `performance.now()`. */
  giveUpAt: number
  /** Aborts when nobody waits for the answer any more. */
  gone: AbortSignal
  /** Whether another process has found the document valid. */
  isValid?: boolean
  /** Called before anything is executed. */
  admit(asked: Asked): Promise<Admitted>
}

export const NOT_HERE = Symbol('not here')

/** What a request brings along, or that it is not executed here. */
export type Admitted = Brought | typeof NOT_HERE
type Brought = Pick<Carried, 'claim' | 'markId' | 'carrying'>

/** Answers a request by GraphQL over HTTP within its budget; undefined for a request that is not admitted. */
export const answerGraphql = (request: GraphqlRequest, answering: Answering): Promise<Answered | undefined> =>
  new Answer(request, answering).answer()

/**
 * `asked`: nothing is known of it yet. `refused`: it is not executed, with errors. `elsewhere`: it is not executed
 * here. `admitted`: it is executed. `executed`: it has a result.
 */
type AnswerMode = 'asked' | 'refused' | 'elsewhere' | 'admitted' | 'executed'

/** One request on its way through graphql-http, which calls the steps. */
class Answer {
  readonly #request: GraphqlRequest
  readonly #given: Answering
  readonly #mode = new Mode<AnswerMode>('asked', {
    asked: ['admitted', 'elsewhere', 'refused'],
    refused: [],
    elsewhere: [],
    admitted: ['executed'],
    executed: [],
  })
  readonly #codes = new Set<unknown>()
  readonly #present: ReturnType<typeof presentError>
  #reason: string | undefined
  #brought: Brought = {}
  #context: QueryContext | undefined
  /** The result, where graphql-http need not serialise it. */
  #text: string | undefined
  /** What the status depends on. */
  #result = { hasData: true, isAway: false }

  constructor(request: GraphqlRequest, given: Answering) {
    this.#request = request
    this.#given = given
    this.#present = presentError(request.requestId, given.log)
  }

  async answer(): Promise<Answered | undefined> {
    const { url, method, headers, body } = this.#request
    const handle = createHandler<undefined, undefined, QueryContext>({
      formatError: error => this.#formatError(error),
      parseRequestParams: asked => {
        if (method === 'POST') checkJson(body)
        return parseRequestParams(asked)
      },
      onSubscribe: (_request, params) => this.#begin(params),
      execute: args => this.#execute(args),
      onOperation: (_request, _args, result) => this.#end(result as ExecutionResult),
    })
    const asked = { url, method, headers, body: () => body, raw: undefined, context: undefined }
    const [answer, init] = await handle(asked).catch(async error => {
      await this.#brought.claim?.release()
      throw error
    })
    if (this.#mode.now === 'elsewhere') return undefined
    const { hasData, isAway } = this.#result
    const retryAfter: Record<string, string> = isAway ? { 'retry-after': String(RETRY_AFTER_S) } : {}
    return {
      status: isAway ? 503 : hasData ? init.status : statusWithoutData(headers.accept, this.#codes),
      headers: { ...init.headers, ...retryAfter },
      body: this.#text ?? answer,
      codes: this.#codes,
      reason: this.#reason,
      claim: this.#brought.claim,
    }
  }

  #formatError(error: Readonly<Error>) {
    const shown = this.#present(error, this.#context?.hasChanged)
    const { code, reason } = shown.extensions
    this.#codes.add(code)
    if (code === 'UNAUTHENTICATED') this.#reason ??= String(reason)
    return shown
  }

  /** Reads the document and has it admitted: what to execute, or why not. */
  async #begin({ query, operationName, variables = null }: RequestParams) {
    const { schema, documents, contextOf, isValid } = this.#given
    if (!isValid && documents.isLong(query) && !(await this.#isAdmitted(undefined, variables))) return NOTHING
    const { document, faults } = documents.read(query, variables, isValid)
    if (faults) return this.#refuse(faults)
    const operation = getOperationAST(document, operationName)
    if (!operation) return this.#refuse([asGraphqlError(noSuchOperation(document, operationName))])
    if (operation.operation === 'subscription') return this.#refuse([asGraphqlError(onlyAsEvents())])
    const notGiven = variablesNotGiven(document, operation, variables)
    if (notGiven.length > 0) return this.#refuse(notGiven)
    if (!(await this.#isAdmitted(operation, variables))) return NOTHING
    this.#mode.enter('admitted')
    this.#context = contextOf(this.#brought)
    return { schema, document, operationName, variableValues: variables, contextValue: this.#context }
  }

  #refuse(faults: readonly GraphQLError[]): readonly GraphQLError[] {
    this.#mode.enter('refused')
    return faults
  }

  async #isAdmitted(operation: Asked['operation'], variables: Asked['variables']): Promise<boolean> {
    const given = await this.#given.admit({ operation, variables })
    if (given === NOT_HERE) this.#mode.enter('elsewhere')
    else this.#brought = given
    return given !== NOT_HERE
  }

  // graphql's own executor takes a tenth more time for many rows. The schema defers nothing.
  async #execute(args: ExecutionArgs): Promise<ExecutionResult> {
    const { budget, giveUpAt, gone } = this.#given
    const operation = getOperationAST(args.document, args.operationName)!
    const isQuery = operation.operation === 'query'
    const work = () => executeInTime(args, isQuery, giveUpAt)
    try {
      // A mutation runs to its end, whether or not a client still waits, however long that takes.
      const span = `mutation ${nameOfOperation(operation)}`
      if (!isQuery) return await budget.within(() => inSpan(span, 'internal', {}, work))
      if (gone.aborted) throw hungUp()
      gone.addEventListener('abort', () => budget.end(hungUp()), { once: true })
      return await budget.withinTime(work)
    } catch (error) {
      return { errors: [asGraphqlError(error)] }
    }
  }

  #end(result: ExecutionResult): ExecutionResult | undefined {
    this.#mode.enter('executed')
    if (!('data' in result) || result.errors) {
      const hasData = 'data' in result && result.data !== undefined
      this.#result = { hasData, isAway: isUnavailable(result) && !this.#context?.hasChanged }
      return undefined
    }
    // graphql-http would search each value for errors, which takes longer than the rest of JSON.stringify.
    const text = JSON.stringify(result)
    // Escaped and non-ASCII characters take more bytes than were counted.
    if (Buffer.byteLength(text) > BUDGET.bytes) return { errors: [asGraphqlError(overspent('bytes'))] }
    this.#text = text
    return { data: null }
  }
}

/** The status of an answer without `data`, by GraphQL over HTTP; with `application/json` it is always 200. */
export const statusWithoutData = (accept: string | undefined, codes: Set<unknown>): number =>
  accept?.includes('graphql-response') ? (codes.has('INTERNAL_SERVER_ERROR') ? 500 : 400) : 200

const NOTHING: [null, { status: number; statusText: string }] = [null, { status: 200, statusText: 'OK' }]

const FIRST_REST_MS = 50
const LONGEST_REST_MS = 1_000

/** Executes an operation. Repeats a query until `giveUpAt` while the database is unavailable. */
const executeInTime = async (args: ExecutionArgs, isQuery: boolean, giveUpAt: number): Promise<ExecutionResult> => {
  for (let restMs = FIRST_REST_MS; ; restMs = Math.min(2 * restMs, LONGEST_REST_MS)) {
    const result = (await execute(args)) as ExecutionResult
    if (!isQuery || !result.errors || !isUnavailable(result) || performance.now() + restMs > giveUpAt) return result
    await sleep(restMs)
    ;(args.contextValue as QueryContext).forget()
  }
}

const onlyAsEvents = (): TidingsError =>
  new TidingsError(
    'BAD_USER_INPUT',
    'A subscription is answered as server-sent events: send it with “Accept: text/event-stream” ' +
      'and at most 8,000 characters, in a body of at most 64 KiB.',
  )

const noSuchOperation = (document: DocumentNode, asked: string | null | undefined): TidingsError => {
  const names = document.definitions.flatMap(it =>
    it.kind === Kind.OPERATION_DEFINITION ? (it.name?.value ?? []) : [],
  )
  const wrong = asked == null ? 'the document has several operations' : `the document has no operation "${asked}"`
  return badInput('operationName', `${wrong}; choose from ${names.join(', ')}`)
}
