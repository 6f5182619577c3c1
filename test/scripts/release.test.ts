import assert from 'node:assert/strict'
import { cpSync, readFileSync, writeFileSync } from 'node:fs'
import { mkdir } from 'node:fs/promises'
import path from 'node:path'
import { test } from 'node:test'
import { release } from '../../scripts/release.js'
import { temporaryFolder } from '../cli/tidings.ts'
import { repository } from './checkout.ts'

const KUBERNETES = 'deploy/kubernetes/kustomization.yaml'
const FILES = ['package.json', 'package-lock.json', 'CHANGELOG.md', 'receiver/package.json', KUBERNETES]

const copy = async (): Promise<string> => {
  const folder = temporaryFolder()
  for (const name of FILES) {
    await mkdir(path.dirname(path.join(folder, name)), { recursive: true })
    cpSync(path.join(repository, name), path.join(folder, name))
  }
  // Right after a release, nothing is unreleased.
  const changelog = readFileSync(path.join(folder, 'CHANGELOG.md'), 'utf8')
  const unreleased = '## [Unreleased]\n'
  writeFileSync(path.join(folder, 'CHANGELOG.md'), changelog.replace(unreleased, `${unreleased}\n- A change.\n`))
  return folder
}
const json = (folder: string, name: string) => JSON.parse(readFileSync(path.join(folder, name), 'utf8'))

test('a release gives every package the version, and the server the kit of that version', async () => {
  const folder = await copy()
  release('999.0.0', { folder })
  const manifest = json(folder, 'package.json')
  const lock = json(folder, 'package-lock.json')
  const versions = [manifest, json(folder, 'receiver/package.json'), lock, lock.packages[''], lock.packages.receiver]
  for (const { version } of versions) assert.equal(version, '999.0.0')
  assert.equal(manifest.dependencies['@tidings/receiver'], '999.0.0')
  assert.equal(lock.packages[''].dependencies['@tidings/receiver'], '999.0.0')
  assert.match(readFileSync(path.join(folder, KUBERNETES), 'utf8'), /newTag: 999\.0\.0 }/)
})

test('a release heads what was unreleased with its version and date, and begins anew', async () => {
  const folder = await copy()
  const before = readFileSync(path.join(folder, 'CHANGELOG.md'), 'utf8')
  release('999.0.0', { folder, date: '2026-11-22' })
  const after = readFileSync(path.join(folder, 'CHANGELOG.md'), 'utf8')
  assert.equal(after, before.replace('## [Unreleased]\n', '## [Unreleased]\n\n## [999.0.0] - 2026-11-22\n'))
  assert.throws(() => release('999.0.1', { folder }), /nothing under \[Unreleased\]/)
})

test('a release is refused whose version is none, or not later', async () => {
  const folder = await copy()
  for (const version of ['', 'next', '1.2', 'v9.9.9'])
    assert.throws(() => release(version, { folder }), /is no version/)
  assert.throws(() => release('0.0.1', { folder }), /not later than the present version/)
})

test('the packages of this checkout have one version', () => {
  const manifest = json(repository, 'package.json')
  assert.equal(json(repository, 'receiver/package.json').version, manifest.version)
  assert.equal(manifest.dependencies['@tidings/receiver'], manifest.version)
  assert.ok(readFileSync(path.join(repository, KUBERNETES), 'utf8').includes(`newTag: ${manifest.version} }`))
})
