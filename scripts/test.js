// `npm test [-- FILES AND OPTIONS OF node --test]`. Plain JavaScript for any Node from 14 on.
import { fileURLToPath } from 'node:url'
import { ensureInstalled } from './install.js'
import { endWithNpm, runInPlace, withLocalPrograms } from './run.js'

endWithNpm()
try {
  const node = await ensureInstalled()
  const suite = fileURLToPath(new URL('suite.js', import.meta.url))
  process.exitCode = await runInPlace(node, [suite, ...process.argv.slice(2)], withLocalPrograms())
} catch (error) {
  console.error(`tidings: ${error instanceof Error ? error.message : error}`)
  process.exitCode = 1
}
