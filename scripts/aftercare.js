import { spawn } from 'node:child_process'
import { once } from 'node:events'

const SCRIPT = `
  folder=$1
  while read -r process; do processes="$processes $process"; done
  for process in $processes; do kill -9 "$process"; done
  rm -rf "$folder"
`

/**
 * Sees to it that a temporary folder and some processes do not outlive this process, even when that is killed: a shell in a
 * session of its own, which no Ctrl-C reaches, waits for the end of a pipe from here, then ends them.
 * `include` adds a process by its id, or a process group by its negative id; `end` does it now and waits until it is done.
 */
export const aftercare = folder => {
  const shell = spawn('/bin/sh', ['-c', SCRIPT, 'sh', folder], { detached: true, stdio: ['pipe', 'ignore', 'ignore'] })
  const ended = once(shell, 'exit')
  return {
    include: processId => shell.stdin.write(`${processId}\n`),
    end: async () => {
      shell.stdin.end()
      await ended
    },
  }
}
