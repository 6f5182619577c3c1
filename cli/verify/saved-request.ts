import type { IncomingHttpHeaders } from 'node:http'
import { usageError } from '../errors.ts'
import { type StandardHeaders, standardOf } from './check-standard.ts'
import { requestFromCurl } from './curl-output.ts'

/** The parts of a request to write. */
interface RequestParts {
  method: string
  headers: IncomingHttpHeaders
  body: string
}

/** A delivery as it was received. */
export interface SavedRequest {
  /** The whole URL if the request line has it, as in requests saved by `listen`; else the path. */
  target: string
  host: string | undefined
  authorization: string | undefined
  /** The headers of Standard Webhooks. */
  standard: StandardHeaders
  /** Undefined if the saved form does not contain it. */
  body: string | undefined
  /** Whether the body is the one that was sent, byte for byte. */
  isExact: boolean
}

/** An HTTP/1.1 request as text (RFC 9112), with the whole URL in its first line, which is the audience. */
export const writeRequest = ({ method, headers, body }: RequestParts, url: string): string => {
  const lines = Object.entries(headers).flatMap(([name, value]) =>
    value === undefined ? [] : [`${name}: ${[value].flat().join(', ')}`],
  )
  return `${method} ${url} HTTP/1.1\r\n${lines.join('\r\n')}\r\n\r\n${body}`
}

/** Whether a text looks like a request, saved as HTTP or by curl. */
export const isRequest = (text: string): boolean => /^(> |0000: )?[A-Z]+ \S+ HTTP\/\d/m.test(text)

/**
 * Reads such a request, or one from curl's output with `-v`, `--trace` or `--trace-ascii`; line ends may lack their CR.
 * Throws a CliError for anything else.
 */
export const readRequest = (text: string): SavedRequest => {
  const { head, body, isExact } = requestFromCurl(text) ?? { ...partsOf(text), isExact: true }
  const [first = '', ...lines] = head.split(/\r?\n/)
  const [, target] = /^[A-Z]+ (\S+) HTTP\/\d/.exec(first) ?? []
  if (!target) {
    throw usageError(
      first.startsWith('HTTP/')
        ? 'This is a response, as curl -i prints it, and not the request.'
        : 'The saved request does not begin with a request line.',
      'It is such as POST /hooks HTTP/1.1, then its headers, an empty line and its body. ' +
        'tidings listen --save writes it so; curl shows it with -v, --trace or --trace-ascii.',
    )
  }
  const headers = new Map(
    lines.map(line => {
      const colon = line.indexOf(':')
      return [line.slice(0, colon).trim().toLowerCase(), line.slice(colon + 1).trim()]
    }),
  )
  const standard = standardOf(name => headers.get(name))
  return { target, host: headers.get('host'), authorization: headers.get('authorization'), standard, body, isExact }
}

const partsOf = (text: string): { head: string; body: string | undefined } => {
  const [, head = text, body] = /^(.*?)(?:\r?\n){2}(.*)$/s.exec(text.trimStart()) ?? []
  return { head, body }
}

/** The possible URLs of a saved request: one if the request line has it, else host and path with both schemes. */
export const possibleUrls = ({ target, host }: SavedRequest): string[] => {
  if (/^https?:\/\//.test(target)) return [target]
  return host === undefined ? [] : [`https://${host}${target}`, `http://${host}${target}`]
}
