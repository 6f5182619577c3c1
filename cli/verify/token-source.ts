import { usageError } from '../errors.ts'
import { readBytes, readText } from '../options.ts'
import type { StandardHeaders } from './check-standard.ts'
import { readClipboard } from './clipboard.ts'
import { isRequest, possibleUrls, readRequest } from './saved-request.ts'

/** The options for the source of a token. */
export interface TokenSource {
  /** The token, `@FILE`, or `-` for standard input. */
  argument?: string | undefined
  /** A saved request's path, or `-`. */
  request?: string | undefined
  clipboard?: boolean | undefined
}

/** A token and the rest of its request. */
export interface ReceivedToken {
  token: string
  body: string | undefined
  /** Whether the body has the exact bytes that were sent; otherwise its digest is not checked. */
  isExact: boolean
  audience: string | undefined
  /** The headers of Standard Webhooks, if the whole request is known. */
  standard?: StandardHeaders
}

/** Reads the token from its source. Throws a CliError unless exactly one source is named and has a token. */
export const readToken = async (
  { argument, request, clipboard }: TokenSource,
  { needsToken = true }: { needsToken?: boolean } = {},
): Promise<ReceivedToken> => {
  const named = [
    argument !== undefined && 'a token',
    request !== undefined && '--request',
    clipboard && '--clipboard',
  ].filter(Boolean)
  if (named.length > 1) throw usageError(`Given are ${named.join(' and ')}.`, 'Give one of them.')
  if (clipboard) return fromClipboard(await readClipboard())
  if (request !== undefined)
    return fromRequest(readBytes(request === '-' ? 0 : request, 'The saved request').toString(), needsToken)
  if (argument !== undefined) return fromText(readText(argument, 'The token'))
  throw usageError(
    'No token is given.',
    `Give one of these:
  tidings verify TOKEN              the token, or the whole Authorization header in quotes
  tidings verify -                  the same, pasted or piped in
  tidings verify --clipboard        the same, copied
  tidings verify --request FILE     a request as tidings listen --save or curl -v keeps it`,
  )
}

const fromText = (text: string): ReceivedToken =>
  isRequest(text) ? fromRequest(text) : { token: bareToken(text), body: undefined, isExact: true, audience: undefined }

/** A clipboard may contain anything, even a password: text that is not a token is not shown. */
const fromClipboard = (text: string): ReceivedToken => {
  const given = fromText(text)
  if (/^[\w-]+\.[\w-]+\.[\w-]*$/.test(given.token)) return given
  throw usageError(
    text.trim() === '' ? 'The clipboard is empty.' : 'There is no delivery token in the clipboard.',
    'Copy the Authorization header of a delivery, its token, or the whole request.',
  )
}

const fromRequest = (text: string, needsToken = true): ReceivedToken => {
  const saved = readRequest(text)
  if (saved.authorization === undefined && needsToken)
    throw usageError('The saved request has no Authorization header.', 'Save it whole; tidings listen --save does.')
  const token = bareToken(saved.authorization ?? '')
  const urls = possibleUrls(saved)
  const { aud } = claimsOf(token)
  const { body, isExact, standard } = saved
  return { token, body, isExact, standard, audience: urls.find(url => url === aud) ?? urls[0] }
}

/** The token after “Bearer ”, possibly inside other text such as a log line; else the whole text. */
const bareToken = (text: string): string => {
  const found = /(?:^|authorization["']?\s*[:=]\s*["']?)\s*bearer\s+([^\s"',]+)/im.exec(text)
  if (!found) return text.trim()
  const [whole, token = ''] = found
  const after = text.slice(found.index + whole.length)
  // An incomplete token continues on the next line if something has wrapped it.
  const isCut = !WHOLE.test(token) && /^\s+[\w.-]+(?:\s+[\w.-]+)*\s*$/.test(after)
  return isCut ? (token + after).trim() : token
}

/** A complete token has the 64 bytes of an Ed25519 signature. */
const WHOLE = /^[\w-]+\.[\w-]+\.[\w-]{86}$/

/** The claims of an unverified token, good only for hints. */
export const claimsOf = (token: string): Record<string, unknown> => {
  try {
    return JSON.parse(Buffer.from(token.split('.')[1] ?? '', 'base64url').toString('utf8')) ?? {}
  } catch {
    return {}
  }
}
