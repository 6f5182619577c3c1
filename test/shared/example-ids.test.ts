import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { test } from 'node:test'
import { events, exampleIds } from '../../shared/events.ts'

const page = readFileSync(new URL('../../docs/receivers/README.md', import.meta.url), 'utf8')

test('the page on receiving names each id that an example’s payload can have, and where it stands', () => {
  const rows = [...page.matchAll(/^\| `(00000000-[0-9a-f-]+)` \| (.+) \|$/gm)]
  const told = new Map(
    rows.map(([, id, places]) => [id, [...places!.matchAll(/`([^`]+)`/g)].map(([, place]) => place)]),
  )
  const found = new Map<string, string[]>()
  const look = (value: unknown, path: string): void => {
    if (typeof value === 'object' && value !== null) {
      for (const [name, below] of Object.entries(value)) look(below, path === '' ? name : `${path}.${name}`)
    } else if (Object.values<unknown>(exampleIds).includes(value)) {
      const places = found.get(value as string) ?? []
      if (!places.includes(path)) found.set(value as string, [...places, path])
    }
  }
  for (const { example } of Object.values(events)) look(example, '')
  assert.deepEqual(told, found)
})
