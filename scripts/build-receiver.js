// Builds receiver/dist for the package @tidings/receiver: the modules once, and their declarations twice, because
// TypeScript treats declarations that a CommonJS module requires as CommonJS.
import { spawnSync } from 'node:child_process'
import { cpSync, globSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import path from 'node:path'
import { fileURLToPath } from 'node:url'

const root = fileURLToPath(new URL('..', import.meta.url))

/** Builds into a folder, by default receiver/dist. */
export const buildReceiver = (dist = path.join(root, 'receiver/dist')) => {
  rmSync(dist, { recursive: true, force: true })
  const compiler = path.join(root, 'node_modules/typescript/bin/tsc')
  const args = [compiler, '--project', path.join(root, 'receiver/tsconfig.json'), '--outDir', dist]
  const { status, stdout } = spawnSync(process.execPath, args, { encoding: 'utf8' })
  if (status !== 0) throw new Error(`The receiver kit could not be built:\n${stdout}`)
  const declarations = globSync('**/*.d.ts', { cwd: dist })
  for (const file of declarations) {
    // Older versions of TypeScript do not resolve declarations by the name of the source.
    const source = readFileSync(path.join(dist, file), 'utf8')
    writeFileSync(path.join(dist, file), source.replace(/(from |import\()'(\.[^']*)\.ts'/g, "$1'$2.js'"))
  }
  for (const file of declarations) {
    const copy = path.join(dist, 'commonjs', file)
    mkdirSync(path.dirname(copy), { recursive: true })
    cpSync(path.join(dist, file), copy)
  }
  writeFileSync(path.join(dist, 'commonjs/package.json'), '{"type":"commonjs"}\n')
}

if (import.meta.main) buildReceiver()
