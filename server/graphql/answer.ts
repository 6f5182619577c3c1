import { setTimeout as sleep } from 'node:timers/promises'
import { execute } from '@graphql-tools/executor'
import {
  type DocumentNode,
  type ExecutionArgs,
  type ExecutionResult,
  type GraphQLSchema,
  getOperationAST,
  Kind,
  type OperationDefinitionNode,
} from 'graphql'
import { createHandler, parseRequestParams } from 'graphql-http'
import { badInput, TidingsError } from '../../shared/errors.ts'
import { RETRY_AFTER_S } from '../database/patience.ts'
import type { Claim } from '../domain/idempotency.ts'
import type { Log } from '../log.ts'
import { inSpan } from '../tracing/tracing.ts'
import { checkJson } from './body-limits.ts'
import { BUDGET, type Budget, overspent } from './budget.ts'
import { type Carried, type Context, createContext, type Service } from './context.ts'
import type { Documents } from './documents.ts'
import { asGraphqlError, isUnavailable, presentError } from './errors.ts'
import { FieldAnswers, onlyField, type ReadField, withoutAnswers } from './field-answers.ts'
import type { Measure } from './limits.ts'
import { nameOfOperation } from './operation-name.ts'
import { type GraphqlAnswer, type GraphqlRequest, hungUp, type Outcomes } from './request.ts'
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
  /**
   * For a mutation that was made: the results of its fields. Its answer has yet to be read, in a process where it
   * blocks nobody.
   */
  made: Outcomes | undefined
}

/** The operation that was found; undefined if the document is not known yet and takes long to parse. */
export type Asked = { operation: OperationDefinitionNode | undefined; variables: Record<string, unknown> | null }

export type Answering = {
  schema: GraphQLSchema
  service: Service
  log: Log
  documents: Documents
  budget: Budget
  /** Until when a query is repeated while the database is unavailable, by `performance.now()`. */
  giveUpAt: number
  /** Aborts when nobody waits for the answer any more. */
  gone: AbortSignal
  /** Whether another process has found the document valid. */
  isValid?: boolean
  /** The results of a mutation's fields, if it was made and has to be answered. */
  made?: Outcomes | undefined
  /** Reads the answers of a mutation with several fields elsewhere, if they have lists. */
  readField?: ReadField | undefined
  /** Called before anything is executed. */
  admit(asked: Asked): Promise<Admitted>
}

export const NOT_HERE = Symbol('not here')

/** The context of an operation, or that it is not executed here. */
export type Admitted = Pick<Carried, 'claim' | 'markId' | 'carrying'> | typeof NOT_HERE

/** Answers a request by GraphQL over HTTP within its budget; undefined for a request that is not admitted. */
export const answerGraphql = async (
  request: GraphqlRequest,
  { schema, service, log, documents, budget, giveUpAt, gone, isValid, made, readField, admit }: Answering,
): Promise<Answered | undefined> => {
  const { token, requestId, url, method, headers, body } = request
  const codes = new Set<unknown>()
  const present = presentError(requestId, log)
  let reason: string | undefined
  let isNotHere = false
  let brought: Pick<Carried, 'claim' | 'markId' | 'carrying'> = {}
  let isAway = false
  let hasData = true
  /** Whether the answer of a mutation is read elsewhere: when it has ended, or field by field. */
  let isReadElsewhere = false
  let fieldAnswers: FieldAnswers | undefined
  let context: Context | undefined
  let unanswered: Outcomes | undefined
  let serialised: string | undefined

  const handle = createHandler<undefined, undefined, Context>({
    formatError: error => {
      const shown = present(error, context?.hasChanged)
      codes.add(shown.extensions.code)
      if (shown.extensions.code === 'UNAUTHENTICATED') reason ??= String(shown.extensions.reason)
      return shown
    },
    parseRequestParams: asked => {
      if (method === 'POST') checkJson(body)
      return parseRequestParams(asked)
    },
    // graphql's own executor takes a tenth more time for many rows. The schema defers nothing.
    execute: async args => {
      const isRead = made !== undefined || operationOf(args) === 'query'
      const document = isReadElsewhere
        ? withoutAnswers(args.document, schema)
        : request.field === undefined
          ? args.document
          : onlyField(args.document, schema, request.field)
      const work = () => executeInTime({ ...args, document }, isRead, giveUpAt)
      try {
        // A mutation runs to its end, whether or not a client still waits, however long that takes.
        if (!isRead) return await budget.within(() => inSpan(`mutation ${operationNamed(args)}`, 'internal', {}, work))
        if (gone.aborted) throw hungUp()
        gone.addEventListener('abort', () => budget.end(hungUp()), { once: true })
        return await budget.within(work, BUDGET.timeMs)
      } catch (error) {
        return { errors: [asGraphqlError(error)] }
      }
    },
    onSubscribe: async (_request, { query, operationName, variables = null }) => {
      const admitted = async (operation: OperationDefinitionNode | undefined) => {
        const given = await admit({ operation, variables })
        isNotHere = given === NOT_HERE
        brought = given === NOT_HERE ? {} : given
        return !isNotHere
      }
      if (!isValid && documents.isLong(query) && !(await admitted(undefined))) return NOTHING
      const { document, measured, faults } = documents.read(query, variables, isValid)
      if (faults) return faults
      const operation = getOperationAST(document, operationName)
      if (!operation) return [asGraphqlError(noSuchOperation(document, operationName))]
      if (operation.operation === 'subscription') return [asGraphqlError(onlyAsEvents())]
      const notGiven = variablesNotGiven(document, operation, variables)
      if (notGiven.length > 0) return notGiven
      if (!(await admitted(operation))) return NOTHING
      const isChange = operation.operation === 'mutation' && !made
      isReadElsewhere = isChange && answersMuch(measured.get(operation)!)
      fieldAnswers = isReadElsewhere && readField && !isOneField(operation) ? new FieldAnswers(readField) : undefined
      const onMade = fieldAnswers?.read.bind(fieldAnswers)
      context = createContext(service, token, requestId, { ...brought, budget, made, onMade })
      return { schema, document, operationName, variableValues: variables, contextValue: context }
    },
    onOperation: (_request, _args, result) => {
      if (!('data' in result) || result.errors) {
        hasData = 'data' in result && result.data !== undefined
        isAway = 'errors' in result && isUnavailable(result) && !context?.hasChanged
        return undefined
      }
      if (isReadElsewhere && !fieldAnswers) unanswered = context?.outcomes
      // graphql-http would search each value for errors, which takes longer than the rest of JSON.stringify.
      const text = fieldAnswers?.text(result.data as Record<string, unknown>) ?? JSON.stringify(result)
      for (const code of fieldAnswers?.codes ?? []) codes.add(code)
      // Escaped and non-ASCII characters take more bytes than were counted.
      if (Buffer.byteLength(text) > BUDGET.bytes) return { errors: [asGraphqlError(overspent('bytes'))] }
      serialised = text
      return { data: null }
    },
  })

  const [answer, init] = await handle({
    url,
    method,
    headers,
    body: () => body,
    raw: undefined,
    context: undefined,
  }).catch(async error => {
    await brought.claim?.release()
    throw error
  })
  if (isNotHere) return undefined
  const retryAfter: Record<string, string> = isAway ? { 'retry-after': String(RETRY_AFTER_S) } : {}
  return {
    status: isAway ? 503 : hasData ? init.status : statusWithoutData(headers.accept, codes),
    headers: { ...init.headers, ...retryAfter },
    body: serialised ?? answer,
    codes,
    reason,
    claim: brought.claim,
    made: unanswered,
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
    ;(args.contextValue as Context).forget()
  }
}

/** For a mutation's answer that is read in the process that made the mutation. */
const MOST_FIELDS = 2_000

/** Whether a mutation's answer needs more than its rows and the single rows that they name. */
const answersMuch = ({ rows, fields }: Measure): boolean => rows > 0 || fields > MOST_FIELDS

/** Whether a mutation has one field, and its answer can be read when it has ended. */
const isOneField = ({ selectionSet: { selections } }: OperationDefinitionNode): boolean =>
  selections.length === 1 && selections[0]!.kind === Kind.FIELD

/** The field that a mutation asks for. */
const operationNamed = ({ document, operationName }: ExecutionArgs): string =>
  nameOfOperation(getOperationAST(document, operationName)!)

const operationOf = ({ document, operationName }: ExecutionArgs): string | undefined =>
  getOperationAST(document, operationName)?.operation

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
