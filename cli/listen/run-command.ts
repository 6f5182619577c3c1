import { spawn } from 'node:child_process'
import { CliError, exitCodes } from '../errors.ts'

export interface RunningCommand {
  /** Rejects with a CliError if the command fails. */
  ended: Promise<void>
  /** Ends the command and everything that it has started. */
  stop(): void
}

interface Given {
  webhookId: string | undefined
  /** The URL that expects deliveries. */
  url: string
  profile: string | undefined
}

const isWindows = process.platform === 'win32'

/**
 * Runs a command in a shell, without standard input, which belongs to listen, and with its output on stderr, because
 * stdout has the deliveries.
 */
export const startCommand = (command: string, { webhookId, url, profile }: Given): RunningCommand => {
  const { promise: ended, resolve, reject } = Promise.withResolvers<void>()
  const env = {
    ...process.env,
    WEBHOOK_URL: url,
    ...(webhookId !== undefined && { WEBHOOK_ID: webhookId }),
    ...(profile !== undefined && { TIDINGS_PROFILE: profile }),
  }
  // A process group of its own, so that it ends with everything that it has started.
  const child = spawn(command, { shell: true, env, detached: !isWindows, stdio: ['ignore', 2, 2] })
  let hasEnded = false
  child.once('error', error => reject(commandFailed(error.message)))
  child.once('exit', (code, signal) => {
    hasEnded = true
    if (code === 0) resolve()
    else reject(commandFailed(signal === null ? `it ended with exit code ${code}` : `${signal} ended it`))
  })
  const stop = (): void => {
    if (hasEnded || child.pid === undefined) return
    if (isWindows) child.kill()
    else process.kill(-child.pid, 'SIGTERM')
  }
  return { ended, stop }
}

const commandFailed = (why: string): CliError =>
  new CliError(exitCodes.failed, 'COMMAND_FAILED', `The command of --run failed: ${why}.`, 'Its output is above.')
