import assert from 'node:assert/strict'
import { readdirSync, readFileSync } from 'node:fs'
import { test } from 'node:test'
import { webhookStatuses } from '../../shared/vocabulary.ts'

const read = (path: string): string => readFileSync(new URL(`../../server/${path}`, import.meta.url), 'utf8')

test('the API names every code of a reason for which an event did not arrive, and no other', () => {
  const files = readdirSync(new URL('../../server/domain/', import.meta.url)).filter(name =>
    name.startsWith('explain-'),
  )
  const source = files.map(name => read(`domain/${name}`)).join('\n')
  const made = [...source.matchAll(/reason\(\s*(?:\w+ \? '(\w+)' : )?['`]([\w${}.]+)['`]/g)].flatMap(
    ([, one, other]) => [
      ...(one ? [one] : []),
      ...(other!.endsWith('}_then')
        ? webhookStatuses.filter(status => status !== 'active').map(status => `${status}_then`)
        : [other!]),
    ],
  )
  const [, described = ''] = /A stable code: ([^.]+)\./.exec(read('graphql/schema.graphql')) ?? []
  const named = [...described.matchAll(/`(\w+)`/g)].map(([, code]) => code!)
  assert.deepEqual(named.toSorted(), [...new Set(made)].toSorted())
})
