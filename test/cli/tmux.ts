import { execFile, spawnSync } from 'node:child_process'
import type { TestContext } from 'node:test'
import { setTimeout as delay } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'

/** Why a test that needs a terminal is left out; false where there is what it needs. */
export const noTmux: string | false =
  spawnSync('tmux', ['-V']).status === 0 ? false : 'a screen is tested in tmux, which is not installed here'

const PROGRAM = fileURLToPath(new URL('../../bin/tidings.js', import.meta.url))
const run = promisify(execFile)
let started = 0

export interface Terminal {
  /** Presses keys by tmux's names for them: `Enter`, `Escape`, `Down`, `C-c`, `r`. */
  press(...keys: string[]): Promise<void>
  /** Types text as it is. */
  type(text: string): Promise<void>
  /** What it shows, a line a row; with colour codes on request. */
  screen(options?: { codes: boolean }): Promise<string>
  /** Waits until the screen shows this, and answers with it. Throws with the screen when it does not within `timeoutMs`. */
  waitFor(shown: string | RegExp, timeoutMs?: number): Promise<string>
  /** As waitFor, for something to be gone. */
  waitWhile(shown: string | RegExp, timeoutMs?: number): Promise<string>
  resize(columns: number, rows: number): Promise<void>
  /** Sends a signal to what the shell runs. */
  kill(signal: NodeJS.Signals): Promise<void>
  /** Of tmux's formats, such as `cursor_flag` or `alternate_on`. */
  ask(format: string): Promise<string>
}

/** A shell in a real terminal of this size; `tidings` runs the command line. Gone when the test has ended. */
export const startTerminal = async (
  t: TestContext,
  { columns, rows, env }: { columns: number; rows: number; env: Record<string, string> },
): Promise<Terminal> => {
  const name = `tidings-${process.pid}-${started++}`
  const inherited = Object.entries(process.env).filter(
    ([name]) => !/^(TIDINGS_|NO_COLOR|FORCE_COLOR|NODE_TEST|CI$|TMUX)/.test(name),
  )
  const environment = { ...Object.fromEntries(inherited), ENV: '', LC_ALL: 'C.UTF-8', ...env }
  const tmux = async (...args: string[]) =>
    (await run('tmux', ['-u', '-L', name, '-f', '/dev/null', ...args], { env: environment })).stdout
  await tmux('new-session', '-d', '-x', String(columns), '-y', String(rows), 'sh')
  t.after(() => tmux('kill-server').catch(() => {}))

  const screen = ({ codes } = { codes: false }) => tmux('capture-pane', '-p', ...(codes ? ['-e'] : []))
  const until = async (wanted: (text: string) => boolean, what: string, timeoutMs: number) => {
    const deadline = Date.now() + timeoutMs
    for (;;) {
      const text = await screen()
      if (wanted(text)) return text
      if (Date.now() > deadline) throw new Error(`${what} within ${timeoutMs} ms. The screen:\n${text}`)
      await delay(20)
    }
  }
  const matches = (shown: string | RegExp) => (text: string) =>
    typeof shown === 'string' ? text.includes(shown) : shown.test(text)
  const terminal: Terminal = {
    press: async (...keys) => void (await tmux('send-keys', ...keys)),
    type: async text => void (await tmux('send-keys', '-l', text)),
    screen,
    waitFor: (shown, timeoutMs = 20_000) => until(matches(shown), `The screen did not show ${shown}`, timeoutMs),
    waitWhile: (shown, timeoutMs = 20_000) =>
      until(text => !matches(shown)(text), `The screen did not stop showing ${shown}`, timeoutMs),
    resize: async (columns, rows) => void (await tmux('resize-window', '-x', String(columns), '-y', String(rows))),
    kill: async signal => {
      const { stdout } = await run('pgrep', ['-P', await terminal.ask('pane_pid')])
      process.kill(Number(stdout.trim()), signal)
    },
    ask: async format => (await tmux('display-message', '-p', `#{${format}}`)).trim(),
  }
  await terminal.type(`tidings() { '${process.execPath}' '${PROGRAM}' "$@"; }; clear\n`)
  await terminal.waitFor(/^[$#]\s*$/)
  return terminal
}
