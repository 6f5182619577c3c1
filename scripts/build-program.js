// Builds a script of each program that a server consists of, where bin/program.js looks for them.
import { mkdirSync, readdirSync, readFileSync, rmSync, statSync } from 'node:fs'
import path from 'node:path'
import { folder, MADE, PARAMETERS, readMade, replace, stateOf } from '../bin/program.js'
import { HOW, leavingOut, PROGRAMS, root } from './build-libraries.js'
import { isInstalled } from './install.js'

/** No server uses these, and the screens' wait for something while they load, which a script cannot. */
const OF_OTHER_COMMANDS = ['ink', 'react', 'yoga-layout', '@modelcontextprotocol/server']
/** What a script is made by, and what lists its libraries: as wanted, and as npm has installed them. */
const MAKERS = [
  ...['bin/program.js', 'scripts/build-libraries.js', 'scripts/build-program.js'],
  ...['package-lock.json', 'node_modules/.package-lock.json'],
]

/**
 * Builds the scripts, unless those of the present sources exist, or other libraries are installed than are wanted:
 * whoever runs a script does not look whether something is to be installed.
 */
export const buildProgram = async () => {
  if (readMade() || !isInstalled(false)) return
  const startedMs = Date.now()
  const esbuild = await import('esbuild')
  const { outputFiles, metafile } = await esbuild.build({
    ...HOW,
    format: 'cjs',
    entryPoints: PROGRAMS,
    outdir: folder,
    outExtension: { '.js': '.cjs' },
    entryNames: '[name]-[hash]',
    metafile: true,
    external: OF_OTHER_COMMANDS,
    banner: { js: `(function (${PARAMETERS.join(', ')}) {` },
    footer: { js: '})' },
    plugins: [atTheirPlaces, leavingOut],
  })
  await esbuild.stop()
  const own = Object.keys(metafile.inputs).filter(file => !file.startsWith('node_modules/'))
  const files = [...own, ...MAKERS]
  // Of what has changed meanwhile, nobody knows which state was read.
  if (files.some(file => statSync(path.join(root, file)).mtimeMs >= startedMs)) return
  const scripts = Object.entries(metafile.outputs).map(([file, { entryPoint = '' }]) => ({
    program: entryPoint.replace(/\.ts$/, ''),
    name: path.basename(file),
  }))
  mkdirSync(folder, { recursive: true })
  for (const { path: file, contents } of outputFiles) replace(file, contents)
  // Whoever starts meanwhile finds the scripts before or these.
  replace(
    path.join(folder, MADE),
    JSON.stringify({
      scripts: Object.fromEntries(scripts.map(({ program, name }) => [program, name])),
      sources: Object.fromEntries(files.map(file => [file, stateOf(file)])),
    }),
  )
  removeBefore(startedMs, [MADE, ...scripts.map(({ name }) => name)])
}

/**
 * Removes what earlier builds have left, but not what one beside this is writing.
 *
 * @param {number} startedMs
 * @param {string[]} needed
 */
const removeBefore = (startedMs, needed) => {
  const others = readdirSync(folder).filter(name => !needed.includes(name))
  for (const file of others.map(name => path.join(folder, name))) {
    if ((statSync(file, { throwIfNoEntry: false })?.mtimeMs ?? startedMs) < startedMs) rmSync(file, { force: true })
  }
}

/**
 * A module finds its files beside itself, and not beside the script.
 *
 * @type {import('esbuild').Plugin}
 */
const atTheirPlaces = {
  name: 'modules at their places',
  setup: build => {
    build.onLoad({ filter: /\.(ts|js|mjs)$/ }, ({ path: file }) => {
      const text = readFileSync(file, 'utf8')
      if (!text.includes(PLACE)) return undefined
      const place = `urlOf(${JSON.stringify(path.relative(root, file))})`
      const contents = text.replaceAll(`createRequire(${PLACE})(`, 'require(').replaceAll(PLACE, place)
      return { contents, loader: file.endsWith('.ts') ? 'ts' : 'js' }
    })
  },
}
const PLACE = 'import.meta.url'

if (import.meta.main) await buildProgram()
