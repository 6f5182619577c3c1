// Builds a bundle of each library that the program imports, where bin/libraries.js looks for them. They share what they
// have in common, so that there is one of each library, as in node_modules.
import { existsSync, mkdirSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import path from 'node:path'
import { fileURLToPath } from 'node:url'
import { folder as folderOfBundles, TABLE } from '../bin/libraries.js'

export const root = fileURLToPath(new URL('..', import.meta.url))

export const PROGRAMS = ['cli/main.ts', 'server/readers/reader.ts']
/** What a bundled CommonJS module requires while it runs. */
const REQUIRE = "import { createRequire } from 'node:module'; const require = createRequire(import.meta.url);"

export const HOW = /** @type {const} */ ({
  absWorkingDir: root,
  bundle: true,
  platform: 'node',
  write: false,
  // A process keeps the text of what it has loaded. An error shows the line that it comes from, so lines stay short.
  minifyWhitespace: true,
  lineLimit: 200,
  legalComments: 'none',
  logLevel: 'error',
})

const SPLIT = /** @type {const} */ ({ splitting: true, format: 'esm', outdir: 'bundles' })

/** Builds the bundles, unless they exist. What npm has not installed has none. */
export const buildLibraries = async () => {
  const folder = folderOfBundles()
  if (folder === undefined || existsSync(folder)) return
  const esbuild = await import('esbuild')
  const specifiers = await imported(esbuild)
  const files = new Map(specifiers.map(specifier => [specifier, specifier.replace(/\W/g, '_')]))
  const { outputFiles } = await esbuild.build({
    ...HOW,
    ...SPLIT,
    entryPoints: Object.fromEntries([...files].map(([specifier, name]) => [name, `${ALL_OF}${specifier}`])),
    chunkNames: 'shared-[hash]',
    outExtension: { '.js': '.mjs' },
    banner: { js: REQUIRE },
    plugins: [await reexporting(specifiers), leavingOut],
  })
  // Ends esbuild's process, which would otherwise live as long as this one.
  await esbuild.stop()
  // Whoever starts meanwhile finds all of it or nothing.
  const made = `${folder}-${process.pid}`
  mkdirSync(made, { recursive: true })
  for (const { path: file, contents } of outputFiles) writeFileSync(path.join(made, path.basename(file)), contents)
  writeFileSync(
    path.join(made, TABLE),
    JSON.stringify(Object.fromEntries([...files].map(([specifier, name]) => [specifier, `${name}.mjs`]))),
  )
  try {
    renameSync(made, folder)
  } catch (error) {
    rmSync(made, { recursive: true })
    if (!existsSync(folder)) throw error
  }
}

/** What the programs import of node_modules. */
const imported = async (/** @type {typeof import('esbuild')} */ { build }) => {
  const { metafile } = await build({ ...HOW, ...SPLIT, entryPoints: PROGRAMS, packages: 'external', metafile: true })
  const imports = Object.values(metafile.inputs).flatMap(input => input.imports)
  const names = imports.filter(({ path, external }) => external && !path.startsWith('node:')).map(({ path }) => path)
  return [...new Set(names)].sort()
}

const ALL_OF = 'all-of:'

/**
 * Entry points that export what Node's own import of each library does, and its `require` of it; esbuild alone gives a
 * CommonJS module a default export and no other.
 *
 * @param {string[]} specifiers
 * @returns {Promise<import('esbuild').Plugin>}
 */
const reexporting = async specifiers => {
  /** @type {Map<string, string>} */
  const texts = new Map()
  for (const name of specifiers) {
    const exported = Object.keys(await import(name))
    const text = `export { ${exported.filter(key => key !== WHOLE).join(', ')} } from '${name}'\n`
    const whole = `import own from '${name}'\nconst whole = own\nexport { whole as '${WHOLE}' }\n`
    texts.set(name, exported.includes(WHOLE) ? text + whole : text)
  }
  return {
    name: 'what Node exports',
    setup: build => {
      build.onResolve({ filter: RegExp(`^${ALL_OF}`) }, ({ path }) => ({
        path: path.slice(ALL_OF.length),
        namespace: ALL_OF,
      }))
      build.onLoad({ filter: /.*/, namespace: ALL_OF }, ({ path }) => ({
        contents: texts.get(path) ?? '',
        resolveDir: root,
      }))
    },
  }
}

/** The name by which Node exports what a CommonJS module is, and takes for it what an ES module exports by it. */
const WHOLE = 'module.exports'

/**
 * Leaves out what a library would use if it were installed, such as drivers of other databases.
 *
 * @type {import('esbuild').Plugin}
 */
export const leavingOut = {
  name: 'what is not installed',
  setup: build => {
    build.onResolve({ filter: /^[^./]/ }, async ({ path, pluginData, ...rest }) => {
      if (pluginData === leavingOut || path.startsWith(ALL_OF)) return
      const found = await build.resolve(path, { ...rest, pluginData: leavingOut })
      return found.errors.length > 0 ? { path, external: true } : found
    })
  },
}

if (import.meta.main) await buildLibraries()
