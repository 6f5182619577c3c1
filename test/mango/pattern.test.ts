import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { compilePattern } from '../../server/mango/pattern.ts'
import { type Literal, type PrefilterRegex, prefilterOf } from '../../server/mango/prefilter.ts'
import { cpuMsOf } from '../support/effort.ts'

const literal = (text: string, rest: Partial<Literal> = {}): Literal => ({
  ...{ text, at: 'anywhere', ignoreCase: false, complete: false },
  ...rest,
})

const found: [string, Literal[]][] = [
  ['acme', [literal('acme', { complete: true })]],
  ['^acme', [literal('acme', { at: 'start', complete: true })]],
  ['^acme$', [literal('acme', { at: 'whole', complete: true })]],
  ['acme ltd\\.', [literal('acme ltd.', { complete: true })]],
  ['(?i)Acme', [literal('acme', { ignoreCase: true })]],
  ['(?i)café', [literal('caf', { ignoreCase: true })]],
  ['acme.*limited', [literal('limited')]],
  ['acme (ltd|inc)', [literal('acme ')]],
  ['acme|borealis', [literal('acme', { complete: true }), literal('borealis', { complete: true })]],
  ['acmes?', [literal('acme', { complete: true })]],
  ['.*acme.*', [literal('acme', { complete: true })]],
  ['.*acme$', [literal('acme')]],
  ['ac+me', [literal('cme')]],
  ['ab{3}c', [literal('abbbc', { complete: true })]],
  ['a{0,3}bc', [literal('bc', { complete: true })]],
  ['[ac]me', [literal('me')]],
  ['\\d+ acme', [literal(' acme')]],
  ['', [literal('', { complete: true })]],
  ['acme|.*', [literal('acme', { complete: true }), literal('', { complete: true })]],
  ['a*', [literal('', { complete: true })]],
  ['[ab]', []],
  ['\\x41cme', []],
  ['\\Qa.b\\E', []],
  ['(?-i)acme', []],
]

for (const [source, literals] of found) {
  test(`the literals of ${JSON.stringify(source)}`, () => assert.deepEqual(prefilterOf(source).literals, literals))
}

const regexes: [string, PrefilterRegex | undefined][] = [
  ['^[A-D]', { source: '\\A[\\x41-\\x44]', complete: true }],
  ['[0-9]{2}$', { source: '[\\x30-\\x39][\\x30-\\x39]\\z', complete: true }],
  ['[0-9]+$', { source: '[\\x30-\\x39]\\z', complete: true }],
  ['a[^b-]?c', { source: '[\\x61]', complete: false }],
  ['x.y', { source: '[\\x78][^\\x0a][\\x79]', complete: true }],
  ['(?s)x.', { source: '[\\x78][\\s\\S]', complete: true }],
  ['^$', { source: '\\A\\z', complete: true }],
  ['\\d|\\w\\b', { source: '[\\x30-\\x39]|[\\x30-\\x39\\x41-\\x5a\\x5f\\x61-\\x7a]', complete: false }],
  ['(?i)[a-z]', undefined],
  ['[é]', undefined],
  ['(a+)+$', undefined],
]

for (const [source, regex] of regexes) {
  test(`the regex of ${JSON.stringify(source)}`, () => assert.deepEqual(prefilterOf(source).regex, regex))
}

const piece = fc.constantFrom(
  ...[
    'a',
    'b',
    'K',
    's',
    'ab',
    'é',
    '.',
    '\\.',
    '\\d',
    '\\b',
    '[ab]',
    '[a-k]',
    '[^a]',
    '[^\\d-]',
    '\\w',
    '\\s',
    '[]a]',
    '[[:alpha:]]',
    '(a)',
    '(?:ab|b)',
    '(?i:b)',
  ],
  ...[
    '^',
    '$',
    '|',
    '(?i)',
    '(?m)',
    '(?s)',
    '*',
    '+',
    '?',
    '{2}',
    '{1,}',
    '{0,1}',
    '{,2}',
    '+?',
    ' ',
    '\\\\',
    '😀',
    '(',
    ')',
    '\\pL',
    '\\x61',
  ],
)
const text = fc.array(
  fc.constantFrom('a', 'b', 'k', 'K', '\u212a', 's', '\u017f', 'é', 'É', '.', '1', '\n', ' ', '\\', '😀', '{,2}'),
  { maxLength: 8 },
)

const has = (value: string, { text: part, at, ignoreCase }: Literal): boolean => {
  const folded = ignoreCase ? value.toLowerCase().replaceAll('\u017f', 's') : value
  if (at === 'whole') return folded === part
  return at === 'start' ? folded.startsWith(part) : folded.includes(part)
}

test('every match has one of the literals and matches the regex, and what has a complete one is a match', () => {
  fc.assert(
    fc.property(
      fc.array(piece, { maxLength: 6 }),
      fc.array(text, { minLength: 20, maxLength: 20 }),
      (pieces, texts) => {
        const source = pieces.join('')
        const compiled = (() => {
          try {
            return compilePattern(source, '')
          } catch {
            return undefined
          }
        })()
        if (!compiled) return
        const { literals, regex } = compiled.prefilter
        const ownRegex = regex && new RegExp(regex.source.replaceAll('\\A', '^').replaceAll('\\z', '$'), 'u')
        for (const characters of texts) {
          const value = characters.join('')
          const matching = literals.filter(candidate => has(value, candidate))
          if (compiled.test(value)) {
            assert.ok(literals.length === 0 || matching.length > 0, JSON.stringify({ source, value, literals }))
            assert.ok(ownRegex?.test(value) ?? true, JSON.stringify({ source, value, regex }))
          }
          if (regex?.complete && ownRegex!.test(value)) {
            assert.ok(compiled.test(value), JSON.stringify({ source, value, regex }))
          }
          if (matching.some(candidate => candidate.complete))
            assert.ok(compiled.test(value), JSON.stringify({ source, value }))
        }
      },
    ),
    { numRuns: Number(process.env.MANGO_RUNS ?? 20) * 250 },
  )
})

test('patterns that make other engines backtrack take linear time', async () => {
  const spentMs = await cpuMsOf(() => {
    for (const source of ['(a+)+$', '(a|a)*$', '(a|aa)+$', '(.*a){20}$', '^(([a-z])+.)+[A-Z]([a-z])+$']) {
      compilePattern(source, '').test(`${'a'.repeat(20_000)}!`)
    }
  })
  assert.ok(spentMs < 4_000, `they took ${spentMs} ms of a processor`)
})
