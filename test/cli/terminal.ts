import { execFile, spawn, spawnSync } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import { createInterface } from 'node:readline'
import { after } from 'node:test'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { eventually, PATIENCE_MS } from '../support/eventually.ts'

/** For a test's `skip`: why there is no terminal, or false. */
export const noTerminal: string | false =
  spawnSync('tmux', ['-V']).status === 0 ? false : 'a terminal is tmux, which is not installed here'

const PROGRAM = fileURLToPath(new URL('../../bin/tidings.js', import.meta.url))

export interface Terminal {
  /** Presses keys by their names in tmux, `Enter`, `Down`, `C-c`; types any other text. */
  press(...keys: string[]): Promise<void>
  /** Types text as it is. */
  type(text: string): Promise<void>
  /** The screen, one line for each row, optionally with colour codes. */
  screen(options?: { codes: boolean }): Promise<string>
  /** Waits until the screen shows this, and answers with it. Throws with the screen at the deadline. */
  waitFor(shown: string | RegExp, timeoutMs?: number): Promise<string>
  /** As waitFor, for something to be gone. */
  waitWhile(shown: string | RegExp, timeoutMs?: number): Promise<string>
  /** As waitFor, in all that has been printed: with what has scrolled off, and lines that were wrapped in one piece. */
  waitForOutput(printed: RegExp, timeoutMs?: number): Promise<string>
  /** Empties the screen, and forgets what has scrolled off. */
  clear(): Promise<void>
  resize(columns: number, rows: number): Promise<void>
  /** Sends a signal to what the shell runs. */
  kill(signal: NodeJS.Signals): Promise<void>
  /** Of tmux's formats, such as `cursor_flag` or `alternate_on`. */
  ask(format: string): Promise<string>
  /** Closes the window, which hangs up on what runs in it. */
  close(): Promise<void>
}

type Given = { env?: Record<string, string>; columns?: number; rows?: number }

/** A real terminal in which a command runs, with none of the caller's own settings, until it is closed. */
const startTerminal = async (
  command: string[],
  { env = {}, columns = 80, rows = 24 }: Given = {},
): Promise<Terminal> => {
  const socket = ['-u', '-L', `tidings-${randomUUID()}`]
  const inherited = Object.entries(process.env).filter(
    ([name]) => !/^(TIDINGS_|NO_COLOR|FORCE_COLOR|NODE_TEST|CI$|TMUX)/.test(name),
  )
  const environment = { ...Object.fromEntries(inherited), ENV: '', LC_ALL: 'C.UTF-8', ...env }
  const begin = ['new-session', '-d', '-x', String(columns), '-y', String(rows), command.map(quoted).join(' ')]
  // The window stays open after the command has ended.
  const stay = ['set-option', '-g', 'remain-on-exit', 'on']
  await promisify(execFile)('tmux', [...socket, '-f', '/dev/null', ...begin, ';', ...stay], { env: environment })
  const { run, close } = control(socket)
  const tmux = async (...args: string[]) => void (await run(...args))

  const screen = ({ codes } = { codes: false }) => run('capture-pane', '-p', ...(codes ? ['-e'] : []))
  const output = () => run('capture-pane', '-p', '-J', '-S', '-')
  const until = (what: string, look: () => Promise<string>, isSo: (text: string) => boolean, timeoutMs = PATIENCE_MS) =>
    eventually(what, look, isSo, { timeoutMs, everyMs: 20 })
  const has = (shown: string | RegExp) => (text: string) =>
    typeof shown === 'string' ? text.includes(shown) : shown.test(text)
  const ask = async (format: string) => (await run('display-message', '-p', `#{${format}}`)).trim()
  return {
    press: (...keys) => tmux('send-keys', ...keys),
    type: text => tmux('send-keys', '-l', text),
    screen,
    waitFor: (shown, timeoutMs) => until(`the screen to show ${shown}`, screen, has(shown), timeoutMs),
    waitWhile: (shown, timeoutMs) =>
      until(`${shown} to go from the screen`, screen, text => !has(shown)(text), timeoutMs),
    waitForOutput: (printed, timeoutMs) => until(`${printed} to be printed`, output, has(printed), timeoutMs),
    clear: async () => {
      await tmux('send-keys', '-R')
      await tmux('clear-history')
    },
    resize: (columns, rows) => tmux('resize-window', '-x', String(columns), '-y', String(rows)),
    async kill(signal) {
      const { stdout } = await promisify(execFile)('pgrep', ['-P', await ask('pane_pid')])
      process.kill(Number(stdout.trim()), signal)
    },
    ask,
    close,
  }
}

/** Gives commands to a tmux over one connection: a process for each look costs more than what is looked at. */
const control = (socket: string[]) => {
  const client = spawn('tmux', [...socket, '-C', 'attach-session', '-f', 'ignore-size,no-output'])
  client.stdin.on('error', () => {})
  const ended = new Promise<void>(resolve => client.once('close', () => resolve()))
  /** Who waits for an answer, in the order of their commands; the first answer is to the attaching. */
  const waiting: PromiseWithResolvers<string>[] = [Promise.withResolvers()]
  let answer: { id: string; lines: string[] } | undefined
  createInterface(client.stdout).on('line', line => {
    const [, is, id = ''] = /^%(begin|end|error) (\d+ \d+ \d+)$/.exec(line) ?? []
    if (answer === undefined) {
      if (is === 'begin') answer = { id, lines: [] }
    } else if (is === undefined || is === 'begin' || id !== answer.id) answer.lines.push(`${line}\n`)
    else {
      const said = answer.lines.join('')
      answer = undefined
      if (is === 'end') waiting.shift()?.resolve(said)
      else waiting.shift()?.reject(new Error(`tmux: ${said}`))
    }
  })
  void ended.then(() => waiting.splice(0).forEach(each => void each.reject(new Error('tmux has ended'))))
  for (const { promise } of waiting) promise.catch(() => {})
  const run = (...args: string[]): Promise<string> => {
    const answered = Promise.withResolvers<string>()
    waiting.push(answered)
    client.stdin.write(`${args.map(quotedForTmux).join(' ')}\n`)
    return answered.promise
  }
  /** Ends tmux itself, and what runs in it. */
  const close = async (): Promise<void> => {
    if (client.exitCode === null) run('kill-server').catch(() => {})
    await ended
  }
  return { run, close }
}

/** As startTerminal, and closed when the test has ended. */
export const openTerminal = async (command: string[], given: Given = {}): Promise<Terminal> => {
  const terminal = await startTerminal(command, given)
  after(terminal.close)
  return terminal
}

/** A shell in a terminal, with its prompt on an empty screen, in which `tidings` is the command line. */
export const startShell = async (given: Given): Promise<Terminal> => {
  // Another prompt until that line has run: what is typed after it must not be typed ahead.
  const terminal = await startTerminal(['sh'], { ...given, env: { ...given.env, PS1: 'starting ' } })
  await terminal.type(`tidings() { '${process.execPath}' '${PROGRAM}' "$@"; }; PS1='$ '; clear\n`)
  await terminal.waitFor(/^\$\s*$/)
  return terminal
}

/** As startShell, and closed when the test has ended. */
export const openShell = async (given: Given): Promise<Terminal> => {
  const terminal = await startShell(given)
  after(terminal.close)
  return terminal
}

const quoted = (word: string): string => `'${word.replaceAll("'", `'\\''`)}'`

/** For tmux, whose commands end with their line. */
const quotedForTmux = (word: string): string => `"${word.replace(/[\\"$]/g, '\\$&').replaceAll('\n', '\\n')}"`
