import { usageError } from '../errors.ts'
import { readBytes, readText } from '../options.ts'
import { readClipboard } from './clipboard.ts'
import { isRequest, possibleUrls, readRequest } from './saved-request.ts'

/** Where a token may come from, as the command line says it. */
export interface TokenSource {
  /** The token, `@FILE`, or `-` for standard input. */
  argument?: string | undefined
  /** A saved request's path, or `-`. */
  request?: string | undefined
  clipboard?: boolean | undefined
}

/** A token, and what else came with it. */
export interface ReceivedToken {
  token: string
  body: string | undefined
  /** Whether the body is the one that was sent, byte for byte; one that is not says nothing of its digest. */
  isExact: boolean
  audience: string | undefined
}

/** Reads the token from where it is. Throws a CliError unless exactly one place is named, and a token is there. */
export const readToken = async ({ argument, request, clipboard }: TokenSource): Promise<ReceivedToken> => {
  const named = [
    argument !== undefined && 'a token',
    request !== undefined && '--request',
    clipboard && '--clipboard',
  ].filter(Boolean)
  if (named.length > 1) throw usageError(`Given are ${named.join(' and ')}.`, 'Give one of them.')
  if (clipboard) return fromClipboard(await readClipboard())
  if (request !== undefined)
    return fromRequest(readBytes(request === '-' ? 0 : request, 'The saved request').toString())
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

/** What is in a clipboard may be anything, a password too: what is no token is not shown. */
const fromClipboard = (text: string): ReceivedToken => {
  const given = fromText(text)
  if (/^[\w-]+\.[\w-]+\.[\w-]*$/.test(given.token)) return given
  throw usageError(
    text.trim() === '' ? 'The clipboard is empty.' : 'There is no delivery token in the clipboard.',
    'Copy the Authorization header of a delivery, its token, or the whole request.',
  )
}

const fromRequest = (text: string): ReceivedToken => {
  const saved = readRequest(text)
  if (saved.authorization === undefined)
    throw usageError('The saved request has no Authorization header.', 'Save it whole; tidings listen --save does.')
  const token = bareToken(saved.authorization)
  const urls = possibleUrls(saved)
  const { aud } = claimsOf(token)
  return { token, body: saved.body, isExact: saved.isExact, audience: urls.find(url => url === aud) ?? urls[0] }
}

/**
 * What follows “Bearer ” in the header, which may stand in other text, such as a line of a log; else all of the text.
 */
const bareToken = (text: string): string => {
  const found = /(?:^|authorization["']?\s*[:=]\s*["']?)\s*bearer\s+([^\s"',]+)/im.exec(text)
  if (!found) return text.trim()
  const [whole, token = ''] = found
  const after = text.slice(found.index + whole.length)
  // One that is not whole goes on in the next line, where something has wrapped it.
  const isCut = !WHOLE.test(token) && /^\s+[\w.-]+(?:\s+[\w.-]+)*\s*$/.test(after)
  return isCut ? (token + after).trim() : token
}

/** With the 64 bytes of an Ed25519 signature. */
const WHOLE = /^[\w-]+\.[\w-]+\.[\w-]{86}$/

/** What a token says, before it is verified: good for a guess, and for nothing else. */
export const claimsOf = (token: string): Record<string, unknown> => {
  try {
    return JSON.parse(Buffer.from(token.split('.')[1] ?? '', 'base64url').toString('utf8')) ?? {}
  } catch {
    return {}
  }
}
