/** Exit codes of every command; scripts rely on them. */
export const exitCodes = {
  done: 0,
  failed: 1,
  usage: 2,
  notFound: 3,
  notPermitted: 4,
  unreachable: 5,
  verificationFailed: 6,
} as const

export type ExitCode = (typeof exitCodes)[keyof typeof exitCodes]

/**
 * A failure as its reader needs it: a stable `code`, what went wrong, what to do next, and the exit code it ends with.
 */
export class CliError extends Error {
  override readonly name = 'CliError'
  readonly exitCode: ExitCode
  readonly code: string
  readonly hint: string | undefined

  constructor(exitCode: ExitCode, code: string, message: string, hint?: string) {
    super(message)
    this.exitCode = exitCode
    this.code = code
    this.hint = hint
  }
}

/** The caller's command line, or a file it names, is at fault: exit code 2. */
export const usageError = (message: string, hint?: string): CliError =>
  new CliError(exitCodes.usage, 'USAGE', message, hint)

/** Ends a command early and well, such as a dry run at the place where its request would have left. */
export class Finished extends Error {
  override readonly name = 'Finished'
}
