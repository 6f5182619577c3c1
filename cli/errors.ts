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

/** A failure for its reader: a stable `code`, what went wrong, what to do next, and the exit code. */
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

/** An error in the command line or in a file that it names: exit code 2. */
export const usageError = (message: string, hint?: string): CliError =>
  new CliError(exitCodes.usage, 'USAGE', message, hint)

const FILE_FAULTS: Record<string, string> = {
  ENOENT: 'there is no such file or folder',
  EACCES: 'this user may not',
  EPERM: 'this user may not',
  EISDIR: 'it is a folder',
  ENOTDIR: 'part of its path is not a folder',
  EROFS: 'the file system is read-only',
  ENOSPC: 'the disk is full',
  EDQUOT: 'this user’s disk quota is used up',
  ENAMETOOLONG: 'its name is too long',
  ELOOP: 'its links form a loop',
  EMFILE: 'too many files are open',
}

/** A file system error in words; the error's own message if it has no entry. */
export const fileFault = (error: unknown): string => {
  const { code = '', message } = error as NodeJS.ErrnoException
  return FILE_FAULTS[code] ?? message
}

/** Whether the file system refused, in contrast to an error of the program. */
export const isFileFault = (error: unknown): error is NodeJS.ErrnoException & { path: string } =>
  Object.hasOwn(FILE_FAULTS, (error as NodeJS.ErrnoException)?.code ?? '') &&
  typeof (error as NodeJS.ErrnoException).path === 'string'

/** Ends a command early and successfully, such as a dry run where its request would be sent. */
export class Finished extends Error {
  override readonly name = 'Finished'
}
