// npm run release -- X.Y.Z: gives the packages their next version and cuts the changelog. It changes files only; the
// recipe in CONTRIBUTING.md says what to run before and after it.
import { readFileSync, writeFileSync } from 'node:fs'
import path from 'node:path'
import { fileURLToPath } from 'node:url'

const KIT = '@tidings/receiver'
const KUBERNETES = 'deploy/kubernetes/kustomization.yaml'
const UNRELEASED = '## [Unreleased]\n'

/** @param {string} text */
const numbersOf = text => text.split('.').map(Number)

/**
 * @param {string} next
 * @param {string} now
 */
const isLater = (next, now) => {
  const [after, before] = [numbersOf(next), numbersOf(now)]
  const first = after.findIndex((number, n) => number !== before[n])
  return first >= 0 && /** @type {number} */ (after[first]) > /** @type {number} */ (before[first])
}

/**
 * Sets the version in every package.json, in package-lock.json and in the Kubernetes manifests, and puts it above what
 * the changelog has unreleased.
 * Throws an Error if the version is not later than the present one, or if there is nothing to release.
 *
 * @param {string} version
 * @param {{ folder?: string, date?: string }} [options] `date` is YYYY-MM-DD, today by default
 */
export const release = (version, { folder = root, date = new Date().toISOString().slice(0, 10) } = {}) => {
  /** @param {string} name */
  const read = name => readFileSync(path.join(folder, name), 'utf8')
  /**
   * @param {string} name
   * @param {string} text
   */
  const write = (name, text) => writeFileSync(path.join(folder, name), text)

  const manifest = JSON.parse(read('package.json'))
  if (!/^\d+\.\d+\.\d+$/.test(version))
    throw new Error(`"${version}" is no version: give three numbers, such as 1.2.3.`)
  if (!isLater(version, manifest.version))
    throw new Error(`${version} is not later than the present version, ${manifest.version}.`)
  const changelog = read('CHANGELOG.md')
  const [before, after = ''] = changelog.split(UNRELEASED)
  const unreleased = after.split('\n## [')[0] ?? ''
  if (!unreleased.includes('\n- ')) throw new Error('CHANGELOG.md has nothing under [Unreleased].')

  const kit = JSON.parse(read('receiver/package.json'))
  const lock = JSON.parse(read('package-lock.json'))
  for (const versioned of [manifest, kit, lock, lock.packages[''], lock.packages.receiver]) versioned.version = version
  for (const depending of [manifest, lock.packages['']]) depending.dependencies[KIT] = version
  const files = { 'package.json': manifest, 'receiver/package.json': kit, 'package-lock.json': lock }
  for (const [name, content] of Object.entries(files)) write(name, `${JSON.stringify(content, null, 2)}\n`)
  write(KUBERNETES, read(KUBERNETES).replace(/newTag: [\d.]+/, `newTag: ${version}`))
  write('CHANGELOG.md', `${before}${UNRELEASED}\n## [${version}] - ${date}\n${after}`)
}

const root = fileURLToPath(new URL('..', import.meta.url))

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  try {
    release(process.argv[2] ?? '')
    console.log(
      `The version is ${process.argv[2]} now. Look at the diff, then go on with the recipe in CONTRIBUTING.md.`,
    )
  } catch (error) {
    console.error(error instanceof Error ? error.message : error)
    process.exitCode = 1
  }
}
