import { execFile, spawnSync } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import { after } from 'node:test'
import { setTimeout as delay } from 'node:timers/promises'
import { promisify } from 'node:util'

/** For a test's `skip`: why there is no terminal to be had, or false. */
export const noTerminal = spawnSync('tmux', ['-V']).status === 0 ? false : 'tmux is not installed'

export interface Terminal {
  /** Presses keys, as tmux names them: text as it is, or `Enter`, `Tab`, `C-c`. */
  press(...keys: string[]): Promise<void>
  /** What is on the screen, with what has scrolled off. */
  text(): Promise<string>
  /** Waits until the screen shows `pattern`, and answers with what it shows. Throws after `timeoutMs`, with the screen. */
  shows(pattern: RegExp, timeoutMs?: number): Promise<string>
  /** Empties the screen, and forgets what has scrolled off. */
  clear(): Promise<void>
  /** Closes the window, which hangs up on what runs in it. */
  close(): Promise<void>
}

/** A real terminal in which a command runs; gone when the test file has ended. */
export const openTerminal = async (
  command: string[],
  { env = {}, columns = 80, rows = 24 }: { env?: Record<string, string>; columns?: number; rows?: number } = {},
): Promise<Terminal> => {
  const name = `tidings-${randomUUID()}`
  const tmux = async (...args: string[]) =>
    (await promisify(execFile)('tmux', ['-L', name, '-f', '/dev/null', ...args])).stdout
  const clear = async () => void (await tmux('send-keys', '-R', ';', 'clear-history'))
  const close = async () => void (await tmux('kill-server').catch(() => {}))
  after(close)
  const variables = Object.entries(env).map(([key, value]) => `${key}=${value}`)
  await tmux(
    ...['new-session', '-d', '-x', String(columns), '-y', String(rows)],
    ['env', '-u', 'NO_COLOR', ...variables, ...command].map(quoted).join(' '),
    // What it ended with stays to be looked at.
    ...[';', 'set-option', '-g', 'remain-on-exit', 'on', ';', 'set-option', '-g', 'history-limit', '5000'],
  )
  const text = () => tmux('capture-pane', '-p', '-J', '-S', '-')
  const shows = async (pattern: RegExp, timeoutMs = 10_000) => {
    const until = Date.now() + timeoutMs
    for (;;) {
      const shown = await text()
      if (pattern.test(shown)) return shown
      if (Date.now() > until) throw new Error(`${pattern} did not show within ${timeoutMs} ms:\n${shown}`)
      await delay(50)
    }
  }
  return { press: async (...keys) => void (await tmux('send-keys', ...keys)), text, shows, clear, close }
}

const quoted = (word: string): string => `'${word.replaceAll("'", `'\\''`)}'`
