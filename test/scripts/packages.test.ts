import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import path from 'node:path'
import { test } from 'node:test'
import { repository } from './checkout.ts'

// The packages of an installation: everything in the lock file that is not for building or testing.

type Locked = { dev?: true; devOptional?: true; link?: true; hasInstallScript?: true; deprecated?: string }

const lock = JSON.parse(readFileSync(path.join(repository, 'package-lock.json'), 'utf8'))
const installed = Object.entries<Locked>(lock.packages).filter(
  ([name, { dev, devOptional, link }]) => name.startsWith('node_modules/') && !dev && !devOptional && !link,
)

test('an installation brings no package that runs something or is deprecated', () => {
  const loud = installed.filter(([, { hasInstallScript, deprecated }]) => hasInstallScript || deprecated)
  assert.deepEqual(
    loud.map(([name]) => name),
    [],
  )
})

test('an installation brings no more packages than a decision says', () => {
  const page = readFileSync(path.join(repository, 'docs/decisions/0012-packages.md'), 'utf8')
  const said = Number(/brings (\d+) packages/.exec(page)![1])
  assert.ok(installed.length <= said, `${installed.length} packages, and ${said} are told of`)
})
