import { setTimeout as sleep } from 'node:timers/promises'
import { execute } from '@graphql-tools/executor'
import {
  type DocumentNode,
  type ExecutionArgs,
  type ExecutionResult,
  type FieldNode,
  type GraphQLSchema,
  getOperationAST,
  Kind,
  type OperationDefinitionNode,
  type SelectionSetNode,
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
import type { Measure } from './limits.ts'
import { nameOfOperation } from './operation-name.ts'
import { type GraphqlAnswer, type GraphqlRequest, hungUp, type Outcomes } from './request.ts'
import { variablesNotGiven } from './variables.ts'

/** As it was answered, and what goes with it. */
export type Answered = GraphqlAnswer & {
  /** Of all its errors. */
  codes: Set<unknown>
  /** Why it is refused as not authenticated, where it is. */
  reason?: string | undefined
  /** What was asked for, where another process has found it: `nameOfOperation`. */
  operation?: string | undefined
  claim: Claim | undefined
  /**
   * Of a mutation that was made: what its fields have come to. Its answer is yet to be read, where it holds up nobody.
   */
  made: Outcomes | undefined
}

/** What was found to be asked; no operation: its document is not known yet, and reading it takes a while. */
export type Asked = { operation: OperationDefinitionNode | undefined; variables: Record<string, unknown> | null }

type Answering = {
  schema: GraphQLSchema
  service: Service
  log: Log
  documents: Documents
  budget: Budget
  /** Until then a query is tried again while the database cannot be had, by `performance.now()`. */
  giveUpAt: number
  /** Aborted when nobody waits for the answer any more. */
  gone: AbortSignal
  /** Another has read the document, and it is valid. */
  isValid?: boolean
  /** What a mutation's fields have come to, where that has been made and is to be answered. */
  made?: Outcomes | undefined
  /** Asked before anything is executed. */
  admit(asked: Asked): Promise<Admitted>
}

export const NOT_HERE = Symbol('not here')

/** What an operation brings with it, or that it is not executed here. */
export type Admitted = Pick<Carried, 'claim' | 'markId' | 'carrying'> | typeof NOT_HERE

/** Answers a request as GraphQL over HTTP has it, within its budget; undefined for one that is not admitted. */
export const answerGraphql = async (
  request: GraphqlRequest,
  { schema, service, log, documents, budget, giveUpAt, gone, isValid, made, admit }: Answering,
): Promise<Answered | undefined> => {
  const { token, requestId, url, method, headers, body } = request
  const codes = new Set<unknown>()
  const present = presentError(requestId, log)
  let reason: string | undefined
  let isNotHere = false
  let brought: Pick<Carried, 'claim' | 'markId' | 'carrying'> = {}
  let isAway = false
  let hasData = true
  /** The field of a mutation whose answer is read elsewhere. */
  let onlyMade: FieldNode | undefined
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
    // graphql's own takes a tenth more time where there are many rows. Nothing in the schema is deferred.
    execute: async args => {
      const isRead = made !== undefined || operationOf(args) === 'query'
      const document = onlyMade ? withoutAnswer(args.document, onlyMade) : args.document
      const work = () => executeInTime({ ...args, document }, isRead, giveUpAt)
      try {
        // A mutation ends when it has done what it does, whoever waits for it and however long that takes.
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
      onlyMade = isChange && answersMuch(measured.get(operation)!) ? onlyFieldOf(operation) : undefined
      context = createContext(service, token, requestId, { ...brought, budget, made })
      return { schema, document, operationName, variableValues: variables, contextValue: context }
    },
    onOperation: (_request, _args, result) => {
      if (!('data' in result) || result.errors) {
        hasData = 'data' in result && result.data !== undefined
        isAway = 'errors' in result && isUnavailable(result) && !context?.hasChanged
        return undefined
      }
      if (onlyMade) unanswered = context?.outcomes
      // graphql-http would look for errors in each value, which takes longer than all else that JSON.stringify does.
      const text = JSON.stringify(result)
      // What is escaped in it, and what is not ASCII, is longer than was counted.
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

/** The status of an answer that has no `data`, by GraphQL over HTTP: with `application/json` it says nothing. */
export const statusWithoutData = (accept: string | undefined, codes: Set<unknown>): number =>
  accept?.includes('graphql-response') ? (codes.has('INTERNAL_SERVER_ERROR') ? 500 : 400) : 200

const NOTHING: [null, { status: number; statusText: string }] = [null, { status: 200, statusText: 'OK' }]

const FIRST_REST_MS = 50
const LONGEST_REST_MS = 1_000

/** Executes an operation; a query again, until `giveUpAt`, while the database cannot be had for it. */
const executeInTime = async (args: ExecutionArgs, isQuery: boolean, giveUpAt: number): Promise<ExecutionResult> => {
  for (let restMs = FIRST_REST_MS; ; restMs = Math.min(2 * restMs, LONGEST_REST_MS)) {
    const result = (await execute(args)) as ExecutionResult
    if (!isQuery || !result.errors || !isUnavailable(result) || performance.now() + restMs > giveUpAt) return result
    await sleep(restMs)
    ;(args.contextValue as Context).forget()
  }
}

/** Of a mutation's answer that is read where the mutation is made. */
const MOST_FIELDS = 2_000

/** Whether the answer of a mutation has more than its rows and single ones that they name. */
const answersMuch = ({ rows, fields }: Measure): boolean => rows > 0 || fields > MOST_FIELDS

/** The one field of a mutation. Where there are several, each is answered before the next one changes something. */
const onlyFieldOf = ({ selectionSet: { selections } }: OperationDefinitionNode): FieldNode | undefined =>
  selections.length === 1 && selections[0]!.kind === Kind.FIELD ? selections[0] : undefined

/** A document whose mutation is made, and answers nothing but the name of its type. */
const withoutAnswer = (document: DocumentNode, made: FieldNode): DocumentNode => ({
  ...document,
  definitions: document.definitions.map(definition =>
    definition.kind === Kind.OPERATION_DEFINITION && definition.selectionSet.selections[0] === made
      ? { ...definition, selectionSet: { ...TYPENAME, selections: [{ ...made, selectionSet: TYPENAME }] } }
      : definition,
  ),
})

const TYPENAME: SelectionSetNode = {
  kind: Kind.SELECTION_SET,
  selections: [{ kind: Kind.FIELD, name: { kind: Kind.NAME, value: '__typename' } }],
}

/** What a mutation that is carried out asks for. */
const operationNamed = ({ document, operationName }: ExecutionArgs): string =>
  nameOfOperation(getOperationAST(document, operationName)!)

const operationOf = ({ document, operationName }: ExecutionArgs): string | undefined =>
  getOperationAST(document, operationName)?.operation

const onlyAsEvents = (): TidingsError =>
  new TidingsError(
    'BAD_USER_INPUT',
    'A subscription is answered as server-sent events: send it with “Accept: text/event-stream”, ' +
      'in 8,000 characters at most.',
  )

const noSuchOperation = (document: DocumentNode, asked: string | null | undefined): TidingsError => {
  const names = document.definitions.flatMap(it =>
    it.kind === Kind.OPERATION_DEFINITION ? (it.name?.value ?? []) : [],
  )
  const wrong = asked == null ? 'the document has several operations' : `the document has no operation "${asked}"`
  return badInput('operationName', `${wrong}; choose from ${names.join(', ')}`)
}
