import assert from 'node:assert/strict'
import { test } from 'node:test'
import { brokenTokens, soundTokens } from '../../server/delivery/rehearsal/token-vectors.ts'
import { decodeByHand, fromCanonicalBase64url } from '../../shared/bytes.ts'
import { mint } from '../receiver/tokens.ts'

const numbersIn = (bytes: Uint8Array | undefined): number[] | undefined => bytes && [...bytes]

test('base64url is read alike with and without Node’s Buffer', async () => {
  const tokens = await Promise.all([...soundTokens, ...brokenTokens].map(([, make]) => make(mint)))
  const texts = new Set(tokens.flatMap(token => [token, ...token.split('.')]))
  for (const end of ['', 'A', 'AA', 'AB', 'AQ', 'AAA', 'AAB', 'AAE', '__-_', 'é', '=', '+', 'A A', '\n']) {
    for (const start of ['', 'AAAA', '-_09', 'zZ']) texts.add(start + end)
  }
  const kinds = { read: 0, refused: 0 }
  for (const text of texts) {
    const bytes = numbersIn(fromCanonicalBase64url(text))
    assert.deepEqual(numbersIn(decodeByHand(text)), bytes, text)
    kinds[bytes ? 'read' : 'refused'] += 1
  }
  assert.ok(kinds.read > 100 && kinds.refused > 100, JSON.stringify(kinds))
})
