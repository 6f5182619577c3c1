import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import path from 'node:path'
import { test } from 'node:test'
import { pages } from '../../scripts/reference.ts'
import { repository } from './checkout.ts'

for (const [name, made] of Object.entries(pages)) {
  test(`${name} says what the sources say`, () => {
    const written = readFileSync(path.join(repository, name), 'utf8')
    assert.equal(written, made(), 'Write it again: node scripts/reference.ts')
  })
}
