import { GraphQLError } from 'graphql'
import { TidingsError } from '../../shared/errors.ts'

/**
 * The most objects, lists and names in a JSON body. The largest useful body has some thousands; 1 MiB of nothing else
 * blocks the process for 100 ms and more. Texts and numbers do not block it, so they are not counted.
 */
export const MOST_JSON_PARTS = 30_000

/** Throws QUERY_TOO_COMPLEX for a body that would take too long to parse. This scan is fast. */
export const checkJson = (body: string): void => {
  if (body.length <= MOST_JSON_PARTS) return
  let parts = 0
  for (let at = 0; at < body.length; at += 1) {
    const character = body.charCodeAt(at)
    if (character === QUOTE) at = endOfText(body, at)
    else if (character === COLON || character === BRACE || character === BRACKET) parts += 1
  }
  if (parts <= MOST_JSON_PARTS) return
  const [found, most] = [parts, MOST_JSON_PARTS].map(count => count.toLocaleString('en'))
  const message = `The body has ${found} objects, lists and names; at most ${most} are allowed: send several requests.`
  const cause = new TidingsError('QUERY_TOO_COMPLEX', message, { limit: MOST_JSON_PARTS })
  throw new GraphQLError(message, { originalError: cause })
}

const [QUOTE, COLON, BRACE, BRACKET, BACKSLASH] = [...'":{[\\'].map(character => character.charCodeAt(0)) as [
  number,
  number,
  number,
  number,
  number,
]

/** The end of a string that begins at a quote: the next quote with an even number of backslashes before it. */
const endOfText = (body: string, start: number): number => {
  for (let at = start; ; ) {
    at = body.indexOf('"', at + 1)
    if (at < 0) return body.length
    let before = at - 1
    while (body.charCodeAt(before) === BACKSLASH) before -= 1
    if ((at - before) % 2 === 1) return at
  }
}
