import { fromCanonicalBase64url, toText } from './bytes.ts'
import { show } from './show.ts'

/** The longest text that is read as a token; a delivery token has some 500 characters. */
const LONGEST_TOKEN = 16_384

/** A token's header or claims; undefined if they cannot be read. */
export type Content = Record<string, unknown> | undefined

/** Why a text does not have the form of a delivery token: what was expected, what was found, and what to do. */
export type FormatFault = { expected: string; found: string; advice: string }

type Fault = Partial<FormatFault> & Pick<FormatFault, 'found'>

export const CUT_OR_CHANGED =
  'The token was cut or changed on its way: take it from the Authorization header unchanged.'

/** RFC 7515 section 7.1: three parts in base64url; header and claims are JSON objects. */
export const readToken = (token: string): { header: Content; claims: Content; fault: FormatFault | undefined } => {
  const parts = token.length > LONGEST_TOKEN ? [] : token.split('.')
  const misfit = misfitOf(token, parts)
  if (misfit !== undefined) return { header: undefined, claims: undefined, fault: completed(misfit) }

  const [header, claims] = [readHeader(parts[0]!), readPart('claims', parts[1]!)]
  const fault = header.fault ?? claims.fault ?? faultOfSignature(parts[2]!) ?? faultOfHeader(header.content)
  return { header: header.content, claims: claims.content, fault: fault && completed(fault) }
}

const completed = ({
  expected = 'three base64url parts joined by ".", the first two JSON objects',
  found,
  advice = CUT_OR_CHANGED,
}: Fault): FormatFault => ({ expected, found, advice })

/** Why a text does not have the form of a delivery token at all. */
const misfitOf = (token: string, parts: string[]): Fault | undefined => {
  if (token.length > LONGEST_TOKEN) {
    return { found: `${token.length} characters`, advice: 'This is not a delivery token.' }
  }
  if (/^\s*bearer\s/i.test(token)) {
    return { found: show(token), advice: 'Leave out "Bearer ": give what follows it.' }
  }
  if (/^\s*\{/.test(token)) {
    return { found: `JSON: ${show(token)}`, advice: 'Delivery tokens come in the compact form: reject it.' }
  }
  if (parts.length === 5) {
    return { found: 'five parts, as an encrypted token (JWE) has', advice: 'Delivery tokens are signed: reject it.' }
  }
  if (parts.length !== 3) {
    const advice = 'Give what follows "Bearer " in the Authorization header, whole.'
    return { found: `${parts.length} part(s): ${show(token)}`, advice }
  }
  return undefined
}

type Part = { content?: Record<string, unknown>; fault?: Fault }

/** The header that was read last: all tokens by one key have the same. */
let lastHeader: { part: string; read: Part } | undefined

const readHeader = (part: string): Part => {
  if (lastHeader?.part !== part) lastHeader = { part, read: readPart('header', part) }
  return lastHeader.read
}

const readPart = (name: string, part: string): Part => {
  const bytes = fromCanonicalBase64url(part)
  if (bytes === undefined) return { fault: { found: `${name}: no base64url, ${show(part)}` } }
  let text: string
  let content: unknown
  try {
    text = toText(bytes)
    content = JSON.parse(text)
  } catch {
    return { fault: { found: `${name}: no JSON, ${show(part)}` } }
  }
  if (!isObject(content)) return { fault: { found: `${name}: no JSON object, ${show(content)}` } }
  const repeated = isAsWritten(text, content) ? undefined : repeatedMember(text)
  if (repeated === undefined) return { content }
  const advice = 'Two parsers may read it in two ways: reject it.'
  return { content, fault: { expected: 'each name once', found: `${name}: ${repeated} twice`, advice } }
}

const faultOfSignature = (part: string): Fault | undefined =>
  /^[\w-]*$/.test(part) ? undefined : { found: `signature: no base64url, ${show(part)}` }

/** Refuses header members that no delivery token has. */
const faultOfHeader = (header: Content): Fault | undefined => {
  const extension = ['crit', 'b64'].find(name => read(header, name) !== undefined)
  if (extension !== undefined) {
    const advice = 'Delivery tokens use no extensions: reject it.'
    return { expected: 'a header without extensions', found: `${extension} in the header`, advice }
  }
  const typ = read(header, 'typ')
  // RFC 7519 section 5.1 recommends "JWT"; RFC 7515 section 4.1.9 lets it be absent, or be written as a media type.
  if (typ === undefined || (typeof typ === 'string' && /^(application\/)?jwt$/i.test(typ))) return undefined
  return { expected: 'typ "JWT"', found: `typ ${show(typ)}`, advice: 'It was made for something else: reject it.' }
}

/**
 * Whether a text is what JSON.stringify writes, as in every token of the service, which are flat. Then no name is there
 * twice. JSON.stringify takes the square of the depth of what it writes.
 */
const isAsWritten = (text: string, content: object): boolean =>
  text.lastIndexOf('{') === 0 && !text.includes('[') && JSON.stringify(content) === text

/** The first name that the JSON object `json` has twice; parsers may read either one (RFC 7519 section 4). */
const repeatedMember = (json: string): string | undefined => {
  const names = new Set<unknown>()
  let depth = 0
  for (const [token] of json.matchAll(/"(?:[^"\\]|\\.)*"\s*:?|[[\]{}]/g)) {
    if (token === '{' || token === '[') depth += 1
    else if (token === '}' || token === ']') depth -= 1
    else if (depth === 1 && token.endsWith(':')) {
      const name: unknown = JSON.parse(token.slice(0, -1))
      if (names.has(name)) return show(name)
      names.add(name)
    }
  }
  return undefined
}

export const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && !Array.isArray(value)

/** Reads own properties only, so that `constructor` is a claim only if the token has it. */
export const read = (content: Content, name: string): unknown =>
  content !== undefined && Object.hasOwn(content, name) ? content[name] : undefined
