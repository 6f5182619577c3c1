// `npm start`. Plain JavaScript for any Node from 14 on.
import { spawn } from 'node:child_process'
import { fileURLToPath } from 'node:url'
import { ensureInstalled } from './install.js'
import { endWithNpm, runInPlace, withLocalPrograms } from './run.js'

const tidings = fileURLToPath(new URL('../bin/tidings.js', import.meta.url))

/** What the sandbox starts without: its pages, and what makes the next start faster. */
const BUILDS = ['build-pages.js', 'build-libraries.js', 'build-program.js']

endWithNpm()
try {
  const node = await ensureInstalled({ development: false })
  for (const build of BUILDS) {
    spawn(node, [fileURLToPath(new URL(build, import.meta.url))], { stdio: 'ignore', env: withLocalPrograms() })
      .on('error', () => {})
      .unref()
  }
  const args = [tidings, 'server', 'start', '--sandbox', ...process.argv.slice(2)]
  process.exitCode = await runInPlace(node, args, withLocalPrograms())
} catch (error) {
  console.error(`tidings: ${error instanceof Error ? error.message : error}`)
  process.exitCode = 1
}
