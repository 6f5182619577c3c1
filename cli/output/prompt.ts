import { createInterface } from 'node:readline'
import { Writable } from 'node:stream'
import { CliError, exitCodes, usageError } from '../errors.ts'
import { printable } from './neutralise.ts'

/** Questions go to stderr, so that they show even where stdout is piped. Both ends must be a terminal to ask. */
export const canAsk = (): boolean => process.stdin.isTTY === true && process.stderr.isTTY === true

/** Asks for a line of text; `fallback` is what an empty line means. */
export const ask = async (question: string, fallback?: string): Promise<string> => {
  const shown = printable(fallback === undefined ? `${question}: ` : `${question} [${fallback}]: `)
  const answer = (await readLine(shown, process.stderr)).trim()
  return answer === '' && fallback !== undefined ? fallback : answer
}

/** Asks for a secret; what is typed does not show. */
export const askSecret = async (question: string): Promise<string> => {
  process.stderr.write(`${question}: `)
  const nowhere = new Writable({ write: (_chunk, _encoding, done) => done() })
  const secret = await readLine('', nowhere)
  process.stderr.write('\n')
  return secret.trim()
}

const MORE = '\r\n '
const INTERRUPT = '\u0003'
/** q, ctrl-D, escape and ctrl-C. */
const ENOUGH = `qQ\u0004\u001b${INTERRUPT}`

/** Waits for a key below what a list has shown so far: true to go on, false to leave it at that. */
export const askForMore = (told: string): Promise<boolean> =>
  new Promise(resolve => {
    const { stdin, stderr } = process
    stderr.write(`${told}  Enter: more  q: enough `)
    stdin.setRawMode(true)
    const listen = (keys: Buffer): void => {
      const key = keys.toString().charAt(0)
      if (!`${MORE}${ENOUGH}`.includes(key)) return
      stdin.off('data', listen)
      stdin.setRawMode(false)
      stdin.pause()
      // The question makes way for what follows it.
      stderr.write('\r\u001b[K')
      if (key === INTERRUPT) process.kill(process.pid, 'SIGINT')
      resolve(MORE.includes(key))
    }
    stdin.on('data', listen).resume()
  })

/**
 * Makes sure that something dangerous is meant: `--yes` says so, a person is asked, and where there is nobody to ask
 * it is refused. Throws a CliError unless the answer is yes.
 */
export const confirm = async (question: string, { yes }: { yes: boolean }): Promise<void> => {
  if (yes) return
  if (!canAsk()) throw usageError(`${question} There is no terminal to ask on.`, 'Confirm with --yes.')
  const answer = await ask(`${question} (y/N)`)
  if (!/^y(es)?$/i.test(answer))
    throw new CliError(exitCodes.failed, 'NOT_CONFIRMED', 'Not confirmed: nothing was done.')
}

const readLine = (prompt: string, output: NodeJS.WritableStream): Promise<string> =>
  new Promise((resolve, reject) => {
    const lines = createInterface({ input: process.stdin, output, terminal: true, prompt })
    let answered = false
    lines.once('line', line => {
      answered = true
      lines.close()
      resolve(line)
    })
    // Closing puts the terminal back as it was; then the signal does what it does everywhere else.
    lines.once('SIGINT', () => {
      answered = true
      lines.close()
      process.stderr.write('\n')
      process.kill(process.pid, 'SIGINT')
    })
    lines.once('close', () => {
      if (answered) return
      process.stderr.write('\n')
      reject(usageError('The input ended before an answer: nothing was done.', 'Run it again to be asked again.'))
    })
    lines.prompt()
  })
