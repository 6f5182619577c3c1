import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { describe, it } from 'node:test'
import { createSealer } from '../../server/keys/seal.ts'

const [first, second] = [randomBytes(32), randomBytes(32)]
const CONTEXT = 'access token 1'

describe('a sealed secret', () => {
  const sealer = createSealer([first])
  const sealed = sealer.seal('correct horse', CONTEXT)

  it('opens to what was sealed', () => {
    assert.equal(sealer.open(sealed, CONTEXT), 'correct horse')
    assert.equal(sealer.open(sealer.seal('é✓', CONTEXT), CONTEXT), 'é✓')
  })

  it('shows nothing of the secret, and never looks the same twice', () => {
    assert.doesNotMatch(sealed, /correct|horse/)
    assert.doesNotMatch(Buffer.from(sealed.split('.')[3]!, 'base64url').toString('latin1'), /correct|horse/)
    assert.notEqual(sealer.seal('correct horse', CONTEXT), sealed)
  })

  it('does not open for another owner', () => {
    assert.throws(() => sealer.open(sealed, 'access token 2'))
  })

  it('does not open with another master key, and says which setting lacks it without naming any secret', () => {
    assert.throws(
      () => createSealer([second]).open(sealed, CONTEXT),
      ({ message }: Error) => {
        assert.match(message, /access token 1 .* TIDINGS_MASTER_KEY/)
        for (const secret of [first, second]) {
          for (const encoding of ['base64', 'base64url', 'hex'] as const) {
            assert.ok(!message.includes(secret.toString(encoding).slice(0, 8)))
          }
        }
        return true
      },
    )
  })

  it('does not open when a character of it was changed, or when it was cut short', () => {
    const [version, name, iv, text] = sealed.split('.') as [string, string, string, string]
    const bytes = Buffer.from(text, 'base64url')
    const changed = [...bytes.keys()].map(index => {
      const copy = Buffer.from(bytes)
      copy[index]! ^= 1
      return copy
    })
    const cut = [4, 8, 12, 15, 16, bytes.length - 1].map(length => bytes.subarray(0, length))
    for (const wrong of [...changed, ...cut]) {
      assert.throws(() => sealer.open([version, name, iv, wrong.toString('base64url')].join('.'), CONTEXT))
    }
    // Of an empty secret nothing is left but the tag, and a short tag is guessed in no time.
    const empty = sealer.seal('', CONTEXT)
    assert.equal(sealer.open(empty, CONTEXT), '')
    const tag = Buffer.from(empty.split('.')[3]!, 'base64url')
    for (const length of [4, 8, 12, 15]) {
      const short = [...empty.split('.').slice(0, 3), tag.subarray(0, length).toString('base64url')].join('.')
      assert.throws(() => sealer.open(short, CONTEXT))
    }
    for (const wrong of ['', sealed.replace('v1', 'v2'), `${version}.${name}.${iv}`]) {
      assert.throws(() => sealer.open(wrong, CONTEXT))
    }
  })
})

describe('replacing the master key', () => {
  const old = createSealer([first])
  const both = createSealer([second, first])
  const next = createSealer([second])

  it('lets what the old key sealed be opened while both are named', () => {
    assert.equal(both.open(old.seal('secret', CONTEXT), CONTEXT), 'secret')
  })

  it('seals with the first, so that the old one can be left out later', () => {
    const sealed = both.seal('secret', CONTEXT)
    assert.equal(next.open(sealed, CONTEXT), 'secret')
    assert.throws(() => old.open(sealed, CONTEXT))
  })
})
