import { spawn } from 'node:child_process'
import { once } from 'node:events'

const SCRIPT = `
  folder=$1
  while read -r word process; do
    case $word in
      include) processes="$processes $process" ;;
      exclude)
        rest=
        for other in $processes; do [ "$other" = "$process" ] || rest="$rest $other"; done
        processes=$rest ;;
    esac
  done
  for process in $processes; do kill -9 "$process"; done
  rm -rf "$folder"
`

/**
 * @typedef {object} Aftercare
 * @property {(processId: number) => void} include Adds a process by its id, or a process group by its negative id.
 * @property {(processId: number) => void} exclude Removes a process that has ended, whose id another process may get.
 * @property {() => Promise<void>} end Ends and removes everything now, and waits until that is done.
 */

/**
 * Removes a temporary folder and ends processes when this process ends, even if it is killed: a shell in its own
 * session, which no Ctrl-C reaches, waits for the end of a pipe from here, then ends them.
 *
 * @param {string} folder
 * @returns {Aftercare}
 */
export const aftercare = folder => {
  const shell = spawn('/bin/sh', ['-c', SCRIPT, 'sh', folder], { detached: true, stdio: ['pipe', 'ignore', 'ignore'] })
  const ended = once(shell, 'exit')
  return {
    include: processId => shell.stdin.write(`include ${processId}\n`),
    exclude: processId => shell.stdin.write(`exclude ${processId}\n`),
    end: async () => {
      shell.stdin.end()
      await ended
    },
  }
}
