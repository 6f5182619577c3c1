import { createHash, randomBytes, randomUUID } from 'node:crypto'
import { request } from 'node:http'
import { text } from 'node:stream/consumers'
import { parseArgs } from 'node:util'
import {
  type GraphQLField,
  type GraphQLInputType,
  type GraphQLObjectType,
  getNamedType,
  isEnumType,
  isInputObjectType,
  isListType,
  isNonNullType,
  isObjectType,
} from 'graphql'
import { createSchema } from '../../server/graphql/schema.ts'
import { createSealer } from '../../server/keys/seal.ts'
import { operators } from '../../server/mango/selector.ts'
import { type Credentials, signRequest } from '../../shared/hmac.ts'
import {
  createTokens,
  fill,
  idOf,
  type KindName,
  kinds,
  markOf,
  organisationNames,
  type Tokens,
} from '../graphql/noninterference.ts'
import { engines } from '../support/databases.ts'
import { startReceiver } from '../support/receiver.ts'
import { startTestServer, type TestServer } from '../support/server.ts'

// Sends random and mutated requests to a running server: requests generated from the schema, mostly valid, and the same
// with changed characters, tokens, JSON or headers. No answer may be a 500 or show what its token does not see, and the
// server must survive.
//
//   node test/bench/fuzz.ts [--count 100000] [--seed 1] [--engine sqlite]

export type Fuzzed = {
  answers: number
  /** How often each status and code was the answer. */
  codes: Record<string, number>
  faults: string[]
}

/** Fills the server's database, sends `count` requests generated from `seed`, and returns the faults of the answers. */
export const fuzz = async (
  server: TestServer,
  { seed, count, onProgress = () => {} }: { seed: number; count: number; onProgress?: (done: number) => void },
): Promise<Fuzzed> => {
  const made = await createTokens(server.database, createSealer(server.config.masterKeys), Date.now())
  await fill(server.database, made, Date.now())
  const receiver = await startReceiver()
  const found: Fuzzed = { answers: 0, codes: {}, faults: [] }
  let next = 0
  const work = async () => {
    while (next < count && found.faults.length < 20) {
      const n = next++
      const random = new Random(seed * 1_000_003 + n)
      const sent = new Requests(random, made.tokens, receiver.url).next()
      const answer = await send(server.url, sent)
      found.answers += 1
      const fault = faultOf(sent, answer)
      const code = codeOf(answer)
      found.codes[code] = (found.codes[code] ?? 0) + 1
      if (fault)
        found.faults.push(
          `request ${n} of seed ${seed}: ${fault}\n${describe(sent)}\n→ ${answer.status} ` +
            `${answer.text.slice(0, 1_000)}`,
        )
      if (found.answers % 1_000 === 0) onProgress(found.answers)
    }
  }
  try {
    await Promise.all(Array.from({ length: 8 }, work))
    const { status } = await fetch(`${server.url}/readyz`)
    if (status !== 200) found.faults.push(`afterwards /readyz answers ${status}`)
  } finally {
    await receiver.close()
  }
  return found
}

type Sent = { kind: KindName; method: string; path: string; headers: Record<string, string>; body: string }
type Answer = { status: number; text: string }

const faultOf = ({ kind, body, path, headers }: Sent, { status, text }: Answer): string | undefined => {
  if (status >= 500) return `status ${status}`
  if (text.includes('INTERNAL_SERVER_ERROR')) return 'an internal error'
  const asked = `${path} ${body} ${JSON.stringify(headers)}`
  const { sees, permissions }: { sees: readonly string[] | undefined; permissions: readonly string[] } = kinds[kind]
  for (const name of organisationNames) {
    if (sees === undefined || sees.includes(name)) continue
    for (const id of privateIds[name]) {
      if (text.includes(id) && !asked.toLowerCase().includes(id)) return `${kind} is shown ${id}, of ${name}`
    }
    // An admin sees every webhook.
    if (permissions.includes('admin')) continue
    if (text.includes(markOf(name)) && !asked.includes(markOf(name))) return `${kind} is shown a text of ${name}`
  }
  return undefined
}

const codeOf = ({ status, text }: Answer): string => {
  const code = /"code":"([A-Z_]+)"/.exec(text)?.[1]
  return code ? `${status} ${code}` : String(status)
}

const describe = ({ kind, method, path, headers, body }: Sent): string =>
  `${kind}: ${method} ${path.slice(0, 500)} ${JSON.stringify(headers).slice(0, 300)}\n${body.slice(0, 3_000)}`

const send = (base: string, { method, path, headers, body }: Sent): Promise<Answer> =>
  new Promise((resolve, reject) => {
    const { hostname, port } = new URL(base)
    const sent = request({ hostname, port, method, path, headers }, async answer =>
      resolve({ status: answer.statusCode!, text: await text(answer) }),
    )
    sent.on('error', reject)
    sent.end(body)
  })

/** Ids that only a token with sight of the organisation may see. */
const privateIds = Object.fromEntries(
  organisationNames.map(name => [
    name,
    [`organisation ${name}`, `project ${name}2`, `report ${name}1 2026-2`, `event overdue ${name}`].map(idOf),
  ]),
) as Record<(typeof organisationNames)[number], string[]>

/** A query of any fields, selectors and sorts; the same for the same seed. */
export const randomQuery = (seed: number, tokens: Tokens): { document: string; variables: Record<string, unknown> } =>
  new Requests(new Random(seed), tokens, 'http://127.0.0.1:1/').query()

/** mulberry32: the same numbers for the same seed. */
class Random {
  #state: number
  constructor(seed: number) {
    this.#state = createHash('sha256').update(String(seed)).digest().readInt32LE()
  }
  number(): number {
    this.#state = (this.#state + 0x6d2b79f5) | 0
    let t = Math.imul(this.#state ^ (this.#state >>> 15), 1 | this.#state)
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32
  }
  below(end: number): number {
    return Math.floor(this.number() * end)
  }
  chance(of: number): boolean {
    return this.number() < of
  }
  one<T>(list: readonly T[]): T {
    return list[this.below(list.length)]!
  }
  some<T>(list: readonly T[], of: number): T[] {
    return list.filter(() => this.chance(of))
  }
}

const schema = createSchema()
type Field = GraphQLField<unknown, unknown>

const ids = [
  ...organisationNames.map(name => `organisation ${name}`),
  ...organisationNames.flatMap(name => [`project ${name}1`, `project ${name}2`, `report ${name}1 2026-2`]),
  'project moved to S',
  'project moved to A',
  'user 1',
  'webhook named A',
  'webhook named S',
  'webhook unnamed one',
  'webhook narrowed to A',
  'event submitted A',
  'event submitted S',
  'event of A and S',
  'delivery submitted A to named A',
  'delivery submitted S to named S',
].map(idOf)

/** Under an id of another type an upsert would create an object, and the id would no longer be secret. */
const idsFor = (field: string, argument: string): string[] => {
  if (argument !== 'id' || !field.startsWith('upsert')) return ids
  const names = { upsertUser: ['user 1'], upsertProject: ['project A1', 'project S1', 'project moved to A'] }[field]
  return (
    names ?? (field === 'upsertWebhook' ? ['webhook named A', 'webhook named S'] : ['organisation A', 'organisation S'])
  ).map(idOf)
}

const strings = [
  ...['', 'A', 'Org', 'zq', '(?i)org', 'a'.repeat(300), '2026-1', '2026-9', '😀', '\u0000', '\ud800', 'é', 'e\u0301'],
  ...['__proto__', 'constructor', '$where', "'; DROP TABLE users; --", '\\', '%', '_', '`', '"', '\n', '\u2028', '١'],
  ...[
    '^Org',
    '(a+)+$',
    '[',
    '(',
    '(?<n>a)\\k<n>',
    '\\p{L}+',
    'x{1000}',
    'x{1001}',
    '(?=a)',
    '\\1',
    '.*',
    '^',
    '$',
    '[[:alpha:]]',
  ],
  ...['2026-11-21T00:40:01.123+00:00', '2026-11-21', '2026-02-30', '0000-01-01T00:00:00Z', '9999-12-31T23:59:59Z'],
  ...['delivered', 'disabled', 'ping', 'token_expired', 'object', 'null'],
]
const numbers = [0, 1, -1, 2, 3, 10, 0.5, 1e21, -1e-9, 2 ** 31, 2 ** 53, 1e308]

/** Only these change anything; changes by the others would show one what belongs to another. */
const changing: KindName[] = ['sees one', 'sees one, admin', 'sees two', 'sees the third', 'sees none']

class Requests {
  readonly #random: Random
  readonly #tokens: Tokens
  readonly #receiverUrl: string
  readonly #variables: Record<string, unknown> = {}
  #declared: string[] = []

  constructor(random: Random, tokens: Tokens, receiverUrl: string) {
    this.#random = random
    this.#tokens = tokens
    this.#receiverUrl = receiverUrl
  }

  /** Mostly of one field, so that many can be asked. */
  query(): { document: string; variables: Record<string, unknown> } {
    const fields = this.#random.chance(0.02) ? this.#random.below(60) : 1
    return { document: this.#document(false, fields), variables: this.#variables }
  }

  next(): Sent {
    const random = this.#random
    const kind = random.one(Object.keys(kinds) as KindName[])
    const mutation = changing.includes(kind) && random.chance(0.35)
    const fields = mutation ? 1 + random.below(2) : random.chance(0.1) ? random.below(60) : 1 + random.below(3)
    let document = this.#document(mutation, fields)
    if (random.chance(0.15)) document = this.#mutated(document)
    const request: Record<string, unknown> = { query: document, variables: this.#variables }
    if (random.chance(0.05)) request.operationName = random.one([null, 'Q', 7, ''])
    let body = JSON.stringify(request)
    if (random.chance(0.08)) body = this.#strange(request, body)
    if (random.chance(0.04)) body = this.#mutated(body)
    const get = random.chance(0.03)
    const part = (text: string) => encodeURIComponent(text.toWellFormed())
    return this.#signed(kind, {
      method: get ? 'GET' : random.chance(0.01) ? 'PUT' : 'POST',
      path: get
        ? `/graphql?query=${part(document)}&variables=${part(JSON.stringify(this.#variables))}`.slice(0, 8_000)
        : '/graphql',
      body: get ? '' : body,
    })
  }

  #signed(kind: KindName, { method, path, body }: { method: string; path: string; body: string }): Sent {
    const random = this.#random
    const credentials: Credentials = this.#tokens[kind]
    const url = new URL(path, 'http://127.0.0.1')
    const signed = signRequest({ method, url, body, credentials, at: new Date(), nonce: randomUUID() })
    const headers: Record<string, string> = {
      ...(signed as Record<string, string>),
      'content-type': 'application/json',
      accept: 'application/json',
    }
    if (random.chance(0.02))
      headers.accept = random.one(['text/html', '*/*', 'application/graphql-response+json', ';', ''])
    if (random.chance(0.02))
      headers['content-type'] = random.one(['text/plain', 'application/json; charset=latin1', ';', ''])
    if (random.chance(0.03)) {
      const name = random.one(Object.keys(signed))
      const changed = this.#mutated(headers[name] ?? '').replaceAll(/[^\x20-\x7e]/g, '')
      if (name !== 'host') headers[name] = changed
    }
    return { kind, method, path: url.pathname + url.search, headers, body }
  }

  #document(mutation: boolean, count: number): string {
    const random = this.#random
    this.#declared = []
    const root = mutation ? schema.getMutationType()! : schema.getQueryType()!
    const fields = Array.from({ length: count }, (_, n) => {
      const field = random.one(Object.values(root.getFields()))
      return `f${n}: ${this.#field(field, 1 + random.below(4))}`
    })
    const named = random.chance(0.1) ? ' Q' : ''
    const declared = this.#declared.length > 0 ? `(${this.#declared.join(', ')})` : ''
    return `${mutation ? 'mutation' : 'query'}${named}${declared} { ${fields.join(' ')} }`
  }

  #field(field: Field, levels: number): string {
    const args = field.args.filter(argument => isNonNullType(argument.type) || this.#random.chance(0.6))
    const passed = args.map(argument => `${argument.name}: ${this.#argument(argument.type, field, argument.name)}`)
    const type = getNamedType(field.type)
    const below = isObjectType(type) ? ` { ${this.#selection(type, levels - 1)} }` : ''
    return `${field.name}${passed.length > 0 ? `(${passed.join(', ')})` : ''}${below}`
  }

  #selection(type: GraphQLObjectType, levels: number): string {
    const random = this.#random
    const fields = random
      .some(Object.values(type.getFields()), 0.4)
      .filter(field => levels > 0 || !isObjectType(getNamedType(field.type)))
    const chosen = fields.map(field =>
      random.chance(0.05) ? `...on ${type.name} { ${this.#field(field, levels)} }` : this.#field(field, levels),
    )
    return ['__typename', ...chosen].join(' ')
  }

  /** An argument as a variable or as a literal. */
  #argument(type: GraphQLInputType, field: Field, name: string): string {
    const value = this.#value(type, field, name)
    if (this.#random.chance(0.5)) {
      const variable = `v${this.#declared.length}`
      this.#declared.push(`$${variable}: ${type}`)
      this.#variables[variable] = value
      return `$${variable}`
    }
    return literal(value, type)
  }

  #value(type: GraphQLInputType, field: Field, name: string): unknown {
    const random = this.#random
    if (random.chance(0.02)) return this.#junk(3)
    if (isNonNullType(type)) return this.#value(type.ofType, field, name)
    if (random.chance(0.05)) return null
    if (isListType(type)) return Array.from({ length: random.below(4) }, () => this.#value(type.ofType, field, name))
    if (isEnumType(type)) return random.one(type.getValues()).name
    if (isInputObjectType(type)) {
      return Object.fromEntries(
        random
          .some(Object.values(type.getFields()), 0.45)
          .map(inner => [inner.name, this.#value(inner.type, field, inner.name)]),
      )
    }
    switch (getNamedType(type).name) {
      case 'UUID':
        return random.chance(0.1) ? randomUUID() : random.one(idsFor(field.name, name))
      case 'Int':
        return random.one([0, 1, 2, 5, 50, 10_000, -1])
      case 'DateTime':
        return random.one(['2026-01-01T00:00:00Z', '2026-11-21T00:40:01.123+00:00', '9999-12-31T23:59:59Z'])
      case 'Date':
        return random.one(['2026-11-21', '2026-02-29', '0001-01-01'])
      case 'MangoSort': {
        const path = this.#path(getNamedType(field.type))
        return random.chance(0.5) ? path : { [path]: random.one(['asc', 'desc']) }
      }
      case 'MangoSelector':
        return this.#selector(getNamedType(field.type), 3)
      default:
        if (name === 'url')
          return random.one([this.#receiverUrl, 'http://127.0.0.1:1/', 'http://10.0.0.1/', 'nowhere', ...strings])
        if (name === 'quarter') return random.one(['2026-1', '2025-4', '2027-5', ...strings])
        return random.chance(0.5) ? `Name ${random.below(10)}` : random.one(strings)
    }
  }

  #selector(type: unknown, levels: number): object {
    const random = this.#random
    const entries = Array.from({ length: random.chance(0.7) ? 1 : random.below(4) }, (): [string, unknown] => {
      if (levels > 0 && random.chance(0.25)) {
        const key = random.one(['$and', '$or', '$nor'])
        return [key, Array.from({ length: random.below(4) }, () => this.#selector(type, levels - 1))]
      }
      if (levels > 0 && random.chance(0.1)) return ['$not', this.#selector(type, levels - 1)]
      return [this.#path(type), this.#condition(levels)]
    })
    return Object.fromEntries(entries)
  }

  #condition(levels: number): unknown {
    const random = this.#random
    if (random.chance(0.2)) return this.#scalar()
    const key = random.one(operators)
    const list = () => Array.from({ length: random.below(4) }, () => this.#scalar())
    switch (key) {
      case '$and':
      case '$or':
      case '$nor':
        return { [key]: Array.from({ length: random.below(3) }, () => (levels > 0 ? this.#condition(levels - 1) : {})) }
      case '$not':
      case '$elemMatch':
      case '$allMatch':
      case '$keyMapMatch':
        return { [key]: levels > 0 ? this.#condition(levels - 1) : {} }
      case '$in':
      case '$nin':
      case '$all':
        return { [key]: list() }
      case '$exists':
        return { [key]: random.chance(0.5) }
      case '$type':
        return { [key]: random.one(['string', 'null', 'array', 'object', 'number', 'boolean', 'date']) }
      case '$mod':
        return { [key]: [random.one(numbers), random.one(numbers)] }
      case '$size':
        return { [key]: random.below(4) }
      case '$regex':
      case '$beginsWith':
        return { [key]: random.one(strings) }
      default:
        return { [key]: this.#scalar() }
    }
  }

  #scalar(): unknown {
    const random = this.#random
    return random.chance(0.1)
      ? this.#junk(2)
      : random.one([random.one(ids), random.one(strings), random.one(numbers), null, true])
  }

  /** A path to a related field of a type, or to nothing. */
  #path(type: unknown): string {
    const random = this.#random
    const names: string[] = []
    let at = type
    while (isObjectType(at) && names.length < 4) {
      const field = random.one(Object.values(at.getFields()))
      names.push(field.name)
      at = getNamedType(field.type)
    }
    if (names.at(-1) === 'payload')
      names.push(random.one(['projectReport.projectId', 'note', 'accessTokenId', '__proto__.x']))
    if (random.chance(0.03)) names.push(random.one(['x', '0', '', '__proto__', 'length']))
    return names.join('.') || 'id'
  }

  #junk(levels: number): unknown {
    const random = this.#random
    if (levels === 0 || random.chance(0.5)) return random.one([...strings, ...numbers, null, true, false, [], {}])
    if (random.chance(0.5)) return Array.from({ length: random.below(4) }, () => this.#junk(levels - 1))
    return Object.fromEntries(
      Array.from({ length: random.below(4) }, () => [random.one(strings), this.#junk(levels - 1)]),
    )
  }

  /** An invalid body. */
  #strange(request: Record<string, unknown>, body: string): string {
    const random = this.#random
    const deep = 1 + random.below(30_000)
    return random.one([
      () => JSON.stringify([request, request]),
      () => JSON.stringify(this.#junk(3)),
      () => JSON.stringify({ ...request, query: this.#junk(1) }),
      () => JSON.stringify({ ...request, variables: this.#junk(2) }),
      () => JSON.stringify({ ...request, extensions: this.#junk(2) }),
      () => `{"query":${JSON.stringify(request.query)},"variables":{"v0":${'['.repeat(deep)}${']'.repeat(deep)}}}`,
      () =>
        `{"query":${JSON.stringify(request.query)},"variables":{"v0":${'{"$and":['.repeat(deep)}${']}'.repeat(deep)}}}`,
      () => `{"query":${JSON.stringify('{a'.repeat(1 + random.below(2_100)))}}`,
      () =>
        `{"query":${JSON.stringify(`{organisations(query:{selector:{name:${'['.repeat(1 + random.below(2_000))}`)}}`,
      () => `{"__proto__":{"query":"{viewer{id}}"},"query":${JSON.stringify(request.query)}}`,
      () => `\ufeff${body}`,
      () => body.padEnd(random.one([1_048_576, 1_048_577, 1_200_000])),
      () => '',
    ])()
  }

  /** A text with some of its characters or words taken out, doubled, swapped or replaced. */
  #mutated(given: string): string {
    const random = this.#random
    let changed = given
    for (let n = 1 + random.below(4); n > 0; n--) {
      const at = random.below(changed.length + 1)
      const to = Math.min(changed.length, at + random.below(random.chance(0.2) ? 100 : 5))
      const part = changed.slice(at, to)
      const instead = random.one([
        '',
        part + part,
        random.one(strings),
        random.one(['{', '}', '(', ')', '[', ']', ':', '...', '@', '$', '!', '"""', '"', '#', ',', '&', '|', '=']),
        random.one(ids),
        [...part].reverse().join(''),
        random.one([
          ' on ',
          ' fragment f on Query { ...f } ',
          ' @skip(if: true) ',
          ' @include(if: $v0) ',
          ' @defer ',
          ' subscription ',
          ' null ',
          ' 1e999 ',
        ]),
      ])
      changed = changed.slice(0, at) + instead + changed.slice(to)
    }
    return changed
  }
}

/** A value in a query document, where a key that begins with `$` is written with `_`. */
const literal = (value: unknown, type: GraphQLInputType): string => {
  if (Array.isArray(value)) return `[${value.map(item => literal(item, type)).join(', ')}]`
  if (typeof value === 'object' && value !== null) {
    const entries = Object.entries(value).filter(([key]) => /^[$_a-zA-Z]\w*$/.test(key))
    return `{${entries.map(([key, item]) => `${key.replace('$', '_')}: ${literal(item, type)}`).join(', ')}}`
  }
  const enumerated = isEnumType(getNamedType(type)) && typeof value === 'string' && /^\w+$/.test(value)
  return enumerated ? value : JSON.stringify(value)
}

if (import.meta.main) {
  const { values } = parseArgs({
    options: {
      count: { type: 'string', default: '100000' },
      seed: { type: 'string', default: String(randomBytes(4).readUInt32LE()) },
      engine: { type: 'string', default: engines.at(-1)! },
    },
  })
  const env = { TIDINGS_RATE_LIMIT: '0', TIDINGS_LOG_LEVEL: 'error' }
  const server = await startTestServer(values.engine, { env })
  const started = performance.now()
  try {
    const { answers, codes, faults } = await fuzz(server, {
      seed: Number(values.seed),
      count: Number(values.count),
      onProgress: done => process.stderr.write(`\r${done}`),
    })
    const seconds = ((performance.now() - started) / 1000).toFixed(0)
    console.log(`\n${answers} requests in ${seconds} s on ${values.engine}, seed ${values.seed}`)
    for (const [code, times] of Object.entries(codes).sort()) console.log(`${String(times).padStart(7)}  ${code}`)
    for (const fault of faults) console.log(`\n${fault}`)
    if (faults.length > 0) process.exitCode = 1
  } finally {
    await server.stop()
  }
}
