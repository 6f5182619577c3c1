// Required before anything that imports libraries: each comes bundled, where scripts/build-libraries.js has made it so.
// Finding and reading the thousand modules that they consist of takes a quarter of a start.
const { existsSync, readFileSync, statSync } = require('node:fs')
const { registerHooks } = require('node:module')
const path = require('node:path')
const { pathToFileURL } = require('node:url')

const modules = path.join(__dirname, '../node_modules')
/** Lists the bundles, by the specifier that each stands for. */
const TABLE = 'table.json'

/** The folder of the bundles of what is installed now, which npm lists anew each time; undefined where npm has not. */
const folder = () => {
  const installed = statSync(path.join(modules, '.package-lock.json'), { throwIfNoEntry: false })
  return installed && path.join(modules, '.cache/libraries', String(installed.mtimeMs))
}

const useBundles = () => {
  const from = folder()
  const table = from && path.join(from, TABLE)
  if (!table || !existsSync(table)) return
  /** @type {Map<string, string>} */
  const files = new Map(Object.entries(JSON.parse(readFileSync(table, 'utf8'))))
  registerHooks({
    resolve(specifier, context, next) {
      const name = files.get(specifier)
      const file = name && path.join(from, name)
      // A process that runs may see another installation in place of the one that it was started from.
      if (!file || !existsSync(file)) return next(specifier, context)
      return { url: pathToFileURL(file).href, format: 'module', shortCircuit: true }
    },
  })
}

useBundles()

module.exports = { folder, TABLE }
