// Builds receiver/dist for the package @tidings/receiver: the modules once, and their declarations twice, because
// TypeScript treats declarations that a CommonJS module requires as CommonJS.
import { spawnSync } from 'node:child_process'
import { cpSync, globSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import path from 'node:path'
import { fileURLToPath } from 'node:url'
import { buildSync } from 'esbuild'

const root = fileURLToPath(new URL('..', import.meta.url))

/** The types of the Fetch API that the declarations name, which a program without DOM and Node's types lacks. */
const WEB_TYPES = ['Request', 'Response', 'AbortSignal']
const WEB = 'web.d.ts'
const webTypes = WEB_TYPES.map(
  name => `export type ${name} = typeof globalThis extends { ${name}: { prototype: infer T } } ? T : any\n`,
).join('')

/** A declaration as TypeScript before 5.7 reads it too, and a program without DOM. */
const forAllVersions = (/** @type {string} */ source, /** @type {string} */ file) => {
  const text = source
    // Older versions do not resolve declarations by the name of the source.
    .replace(/(from |import\()'(\.[^']*)\.ts'/g, "$1'$2.js'")
    .replaceAll('Uint8Array<ArrayBuffer>', 'Uint8Array')
  const named = WEB_TYPES.filter(name => new RegExp(`\\b${name}\\b`).test(text))
  if (named.length === 0) return text
  const depth = file.split(/[/\\]/).length - 1
  return `import type { ${named.join(', ')} } from '${'../'.repeat(depth) || './'}web.js'\n${text}`
}

/** Puts p-retry into the kit, which has one dependency. */
const bundleRetry = (/** @type {string} */ dist) => {
  const licence = readFileSync(path.join(root, 'node_modules/p-retry/license'), 'utf8')
  buildSync({
    ...{ absWorkingDir: root, entryPoints: ['p-retry'], outfile: path.join(dist, 'receiver/p-retry.js') },
    ...{ bundle: true, format: 'esm', platform: 'neutral', target: 'es2022', minify: true, charset: 'utf8' },
    banner: { js: `/*! p-retry and is-network-error.\n${licence}*/` },
  })
  const pulling = path.join(dist, 'receiver/pulling.js')
  writeFileSync(pulling, readFileSync(pulling, 'utf8').replace("'p-retry'", "'./p-retry.js'"))
}

/** Builds into a folder, by default receiver/dist. */
export const buildReceiver = (dist = path.join(root, 'receiver/dist')) => {
  rmSync(dist, { recursive: true, force: true })
  const compiler = path.join(root, 'node_modules/typescript/bin/tsc')
  const args = [compiler, '--project', path.join(root, 'receiver/tsconfig.json'), '--outDir', dist]
  const { status, stdout } = spawnSync(process.execPath, args, { encoding: 'utf8' })
  if (status !== 0) throw new Error(`The receiver kit could not be built:\n${stdout}`)
  bundleRetry(dist)
  const declarations = globSync('**/*.d.ts', { cwd: dist })
  for (const file of declarations) {
    const source = readFileSync(path.join(dist, file), 'utf8')
    writeFileSync(path.join(dist, file), forAllVersions(source, file))
  }
  // TypeScript wraps an import whose name is known at run time alone, and hides its comments from bundlers.
  const testServer = path.join(dist, 'receiver/testing/test-server.js')
  const wrapped = /import\(__rewriteRelativeImportExtension\(([^()]*)\)\)/
  writeFileSync(testServer, readFileSync(testServer, 'utf8').replace(wrapped, 'import($1)'))
  writeFileSync(path.join(dist, WEB), webTypes)
  declarations.push(WEB)
  for (const file of declarations) {
    const copy = path.join(dist, 'commonjs', file)
    mkdirSync(path.dirname(copy), { recursive: true })
    cpSync(path.join(dist, file), copy)
  }
  writeFileSync(path.join(dist, 'commonjs/package.json'), '{"type":"commonjs"}\n')
}

if (import.meta.main) buildReceiver()
