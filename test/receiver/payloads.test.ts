import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { test } from 'node:test'
import { payloadsModule } from '../../scripts/receiver-payloads.ts'

test('the kit has the events of the registry', () => {
  const written = readFileSync(new URL('../../receiver/payloads.ts', import.meta.url), 'utf8')
  assert.equal(written, payloadsModule(), 'Write it again: node scripts/receiver-payloads.ts')
})
