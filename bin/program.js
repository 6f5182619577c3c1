// Loads a program: of a package what was built, of a checkout its sources, as one script where
// scripts/build-program.js has made it and nothing has changed since, with the code that V8 compiled for it in an
// earlier process. Finding, reading and compiling its hundreds of modules takes half of a start.
const diagnostics = require('node:diagnostics_channel')
const { readFileSync, renameSync, statSync, writeFileSync } = require('node:fs')
const { createRequire } = require('node:module')
const path = require('node:path')
const { pathToFileURL } = require('node:url')
const { cachedDataVersionTag } = require('node:v8')
const vm = require('node:vm')

const isPackage = __dirname.split(path.sep).includes('node_modules')
const root = path.join(__dirname, '..')
const folder = path.join(root, 'node_modules/.cache/program')

/** Lists the scripts by their programs, and the state of each file that they were made of. */
const MADE = 'made.json'
/** What a script is given. */
const PARAMETERS = /** @type {const} */ (['module', 'exports', 'require', '__filename', '__dirname', 'urlOf'])

/**
 * What a program exports.
 *
 * @param {string} program - its file, without the extension
 * @param {string} [kind] - processes of one kind run about the same functions; one of no kind runs the sources
 */
const load = async (program, kind) => {
  const script = loadScript(program, kind)
  if (script) return script
  // Node strips no types below node_modules.
  if (isPackage) return import(`../dist/${program}.js`)
  require('./libraries.js')
  return import(`../${program}.ts`)
}

/**
 * What the script of a program exports, or undefined if there is none of the present sources and what is installed.
 *
 * @param {string} program
 * @param {string} [kind]
 */
const loadScript = (program, kind) => {
  // A debugger's breakpoints are in the sources.
  if (!kind || /--inspect/.test(`${process.execArgv} ${process.env.NODE_OPTIONS}`)) return undefined
  const name = readMade()?.scripts[program]
  if (!name) return undefined
  const filename = path.join(folder, name)
  // All its characters are ASCII.
  const source = readIfThere(filename)?.toString('latin1')
  if (!source) return undefined
  // V8 takes code only where its flags are those with which it was compiled, of which server/heap.ts sets some later.
  const tag = cachedDataVersionTag()
  const codeFile = `${filename}-${kind}-${tag}`
  const cachedData = readIfThere(codeFile)
  const script = new vm.Script(source, {
    filename,
    cachedData,
    importModuleDynamically: vm.constants.USE_MAIN_CONTEXT_DEFAULT_LOADER,
  })
  if (!cachedData || script.cachedDataRejected) {
    keepOnce(() => {
      if (cachedDataVersionTag() === tag) replace(codeFile, script.createCachedData())
    })
  }
  const module = { exports: /** @type {any} */ ({}) }
  /** @type {Record<typeof PARAMETERS[number], any>} */
  const given = {
    module,
    exports: module.exports,
    require: createRequire(filename),
    __filename: filename,
    __dirname: folder,
    urlOf: (/** @type {string} */ file) => pathToFileURL(path.join(root, file)).href,
  }
  script.runInThisContext()(...PARAMETERS.map(name => given[name]))
  return module.exports
}

/**
 * Keeps the code before the heap is compacted, which throws much of it away, or when the process ends.
 *
 * @param {() => void} keep
 */
const keepOnce = keep => {
  const compacting = diagnostics.channel('tidings:heap-compacting')
  const end = () => {
    compacting.unsubscribe(keepNow)
    process.off('exit', keepAtExit)
  }
  const keepNow = () => {
    end()
    try {
      keep()
    } catch {
      // Where nothing can be written, each process compiles for itself.
    }
  }
  // One that failed has not run what others will.
  const keepAtExit = (/** @type {number} */ code) => code === 0 && keepNow()
  compacting.subscribe(keepNow)
  process.on('exit', keepAtExit)
}

/** What was made, or undefined if a file that it was made of has changed. */
const readMade = () => {
  const text = readIfThere(path.join(folder, MADE))?.toString()
  if (!text) return undefined
  /** @type {{ scripts: Record<string, string>, sources: Record<string, string> }} */
  const made = JSON.parse(text)
  return Object.entries(made.sources).every(([file, state]) => stateOf(file) === state) ? made : undefined
}

/** @param {string} file */
const stateOf = file => {
  const found = statSync(path.join(root, file), { throwIfNoEntry: false })
  return found && `${found.mtimeMs} ${found.size}`
}

/** @param {string} file */
const readIfThere = file => {
  try {
    return readFileSync(file)
  } catch {
    return undefined
  }
}

/**
 * Puts a file in place at once: whoever reads it finds all of the old one or of the new one.
 *
 * @param {string} file
 * @param {string | Uint8Array} content
 */
const replace = (file, content) => {
  const written = `${file}-${process.pid}`
  writeFileSync(written, content)
  renameSync(written, file)
}

module.exports = { folder, isPackage, load, loadScript, MADE, PARAMETERS, readMade, replace, stateOf }
