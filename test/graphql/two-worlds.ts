import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { type ArgumentNode, parse, print, visit } from 'graphql'
import { createSealer } from '../../server/keys/seal.ts'
import { randomQuery } from '../bench/fuzz.ts'
import { testClock } from '../support/clock.ts'
import { eventually } from '../support/eventually.ts'
import { type GraphqlAnswer, startTestServer, type TestServer } from '../support/server.ts'
import { createTokens, fill, type Kind, type KindName, kinds, markOf, organisationNames } from './noninterference.ts'

// Servers whose answers are compared: one with all data, and for some tokens one with only what the token sees.

export type Asked = { document: string; variables: Record<string, unknown> }

// The data sets that are compared with the whole one, and the tokens that they are left for.
export const compared: KindName[] = ['sees one', 'sees one, admin', 'sees two', 'sees two others', 'sees none']
export const readsAs: Partial<Record<KindName, KindName>> = { 'sees one, reads only': 'sees one' }

/** The arguments of lists that may be refused. */
const ASKING = ['query', 'selector']

/** Each list of two answers that differs, by the first place where it does. */
const differences = (a: string, b: string): string => {
  const partsOf = (text: string) => {
    const { data, ...others } = JSON.parse(text) as { data?: Record<string, unknown> | null }
    return new Map(
      Object.entries({ ...data, ...others }).map(([name, value]) => [name, JSON.stringify(value, null, 1)]),
    )
  }
  const [left, right] = [partsOf(a), partsOf(b)]
  const names = [...new Set([...left.keys(), ...right.keys()])].filter(name => left.get(name) !== right.get(name))
  const told = names.map(name => {
    const [ours, theirs] = [left, right].map(parts => parts.get(name)?.split('\n') ?? [])
    const at = ours!.findIndex((line, index) => line !== theirs![index])
    return `in ${name} ${ours![at]?.trim()} is ${theirs![at]?.trim()} where nothing is hidden`
  })
  return told.join('\n')
}

/**
 * A document once for each list that is asked for with a query, with that query alone. Of several faulty ones in a
 * document, any may be the one that is told.
 */
const eachAlone = ({ document, variables }: Asked): Asked[] => {
  const asking: ArgumentNode[] = []
  const whole = parse(document)
  visit(whole, { Argument: node => void (ASKING.includes(node.name.value) && asking.push(node)) })
  return asking.map(kept => {
    const left = visit(whole, {
      Argument: node => (ASKING.includes(node.name.value) && node !== kept ? null : undefined),
    })
    const used = new Set<string>()
    visit(left, { Argument: node => void visit(node, { Variable: ({ name }) => void used.add(name.value) }) })
    const declared = visit(left, {
      VariableDefinition: node => (used.has(node.variable.name.value) ? undefined : null),
    })
    return { document: print(declared), variables }
  })
}

/** Fills a server with all there is, and for each token compared one with what is left for it. */
export const startWorlds = async (engine: string) => {
  const clock = testClock()
  const env = {
    TIDINGS_ROLES: 'api',
    TIDINGS_RATE_LIMIT: '0',
    TIDINGS_MASTER_KEY: randomBytes(32).toString('base64'),
    // A delivery's evidence names it.
    TIDINGS_ISSUER_URL: 'https://tidings.example.com',
  }
  const start = () => startTestServer(engine, { env, clock })
  const whole = await start()
  const made = await createTokens(whole.database, createSealer(whole.config.masterKeys), clock.now())
  const { tokens } = made
  await fill(whole.database, made, clock.now())
  const left = new Map<KindName, TestServer>()
  const written = new Map<KindName, Awaited<ReturnType<typeof fill>>>()
  for (const kind of compared) {
    const server = await start()
    left.set(kind, server)
    written.set(kind, await fill(server.database, made, clock.now(), kind))
  }
  const of = <T>(map: Map<KindName, T>, kind: KindName): T => map.get(readsAs[kind] ?? kind)!
  const leftFor = (kind: KindName): TestServer => of(left, kind)

  /** On a machine that has much else to do a query may not be answered in time. */
  const isLate = ({ errors }: GraphqlAnswer) =>
    errors?.some(({ extensions }) => extensions.code === 'UNAVAILABLE' || extensions.budget === 'timeMs')

  const textOf = async (server: TestServer, kind: KindName, { document, variables }: Asked): Promise<string> => {
    const send = () => server.graphql(document, variables, tokens[kind])
    const { status, data, errors } = await eventually('an answer', send, answer => !isLate(answer))
    return (
      JSON.stringify({ status, data, errors }, null, 1)
        .replaceAll(/"requestId": "[^"]*"/g, '"requestId": ""')
        .replaceAll(/"durationMs": \d+/g, '"durationMs": 0')
        // Each server has its own keys: of a delivery's evidence, their number is compared, and what is signed.
        .replaceAll(/"signature": "[\w-]+\.\.[\w-]+"/g, '"signature": ""')
        .replaceAll(/"keys": \[([^\]]*)\]/g, (_, keys: string) => `"keys": ${keys.split('"kty"').length - 1}`)
    )
  }

  /**
   * Asks in the whole data set, unless its answer is given, and in what is left of it for the token. Returns the one
   * answer.
   */
  const alike = async (kind: KindName, asked: Asked, before?: string): Promise<string> => {
    const [inWhole, inLeft] = await Promise.all([
      before ?? textOf(whole, kind, asked),
      textOf(leftFor(kind), kind, asked),
    ])
    if (inWhole !== inLeft) {
      const { document, variables } = asked
      assert.fail(`${kind} can tell: ${differences(inWhole, inLeft)}\n${document} ${JSON.stringify(variables)}`)
    }
    assert.doesNotMatch(inWhole, /INTERNAL_SERVER_ERROR/)
    const { sees = organisationNames }: Kind = kinds[kind]
    for (const name of organisationNames) {
      if (sees.includes(name)) continue
      assert.ok(!inWhole.includes(markOf(name)), `${kind} is shown ${name}: ${inWhole}`)
    }
    return inWhole
  }

  /** The answers that were compared, by a query of any fields, selectors and sorts; the same for the same seed. */
  const randomlyAlike = async (seed: number): Promise<string[]> => {
    const kind = compared[seed % compared.length]!
    const asked = randomQuery(seed, tokens)
    const inWhole = await textOf(whole, kind, asked)
    // What is refused before it is executed has no field that is told.
    if (!inWhole.includes('"path": [')) return [await alike(kind, asked, inWhole)]
    const texts: string[] = []
    for (const one of eachAlone(asked)) texts.push(await alike(kind, one))
    return texts
  }

  const stop = async (): Promise<void> => {
    for (const server of [whole, ...left.values()]) await server.stop()
  }

  return {
    whole,
    leftFor,
    /** The rows of what is left for a token, by their table. */
    writtenFor: (kind: KindName) => of(written, kind),
    tokens,
    textOf,
    alike,
    randomlyAlike,
    stop,
  }
}
