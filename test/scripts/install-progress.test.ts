import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { cpSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { text } from 'node:stream/consumers'
import { test } from 'node:test'
import { repository } from './checkout.ts'

test('an installation that takes long says that it goes on, and how far it is', async t => {
  const folder = mkdtempSync(path.join(tmpdir(), 'tidings-slow-install-'))
  t.after(() => rmSync(folder, { recursive: true }))
  cpSync(path.join(repository, 'scripts'), path.join(folder, 'scripts'), { recursive: true })
  writeFileSync(path.join(folder, 'package.json'), '{"name":"slow","type":"module"}')
  const locked = JSON.stringify({ lockfileVersion: 3, packages: { '': {}, 'node_modules/news': { version: '1.0.0' } } })
  writeFileSync(path.join(folder, 'package-lock.json'), locked)
  const bin = path.join(folder, 'bin')
  mkdirSync(bin)
  const npm = `#!/bin/sh
[ "$1" = --version ] && echo 11.0.0 && exit
mkdir -p node_modules/news && cp package-lock.json node_modules/.package-lock.json && sleep 7
`
  writeFileSync(path.join(bin, 'npm'), npm, { mode: 0o755 })
  const env = { ...process.env, PATH: `${bin}:${process.env.PATH}` }
  const child = spawn(process.execPath, [path.join(folder, 'scripts/install.js')], { env })
  assert.match(
    await text(child.stderr),
    /Still installing, for [5-7] s; 1 of its folders are there …\n[^]*Installed in [7-9]/,
  )
})
