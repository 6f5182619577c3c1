import { fstatSync, statSync, writeSync } from 'node:fs'
import { devNull } from 'node:os'
import pc from 'picocolors'
import { codeOf } from '../../shared/errors.ts'
import { CliError, exitCodes, fileFault, usageError } from '../errors.ts'
import { Csv } from './csv.ts'
import { neutralise, printable, safeJson } from './neutralise.ts'
import { asStarted } from './program.ts'
import { type Column, displayWidth, renderTable } from './table.ts'
import { fold } from './wrap.ts'

export const forms = ['json', 'ndjson', 'csv', 'table', 'id'] as const
export type Form = (typeof forms)[number]

export interface OutputFlags {
  output?: Form | undefined
  color?: boolean | undefined
  quiet?: boolean | undefined
  verbose?: boolean | undefined
}

/** After this wait a person wants to know that something still happens. */
const LONG_MS = 3_000

export type Colours = ReturnType<typeof pc.createColors>

export interface View<Row> {
  columns: (Column & { cell: (row: Row, colours: Colours) => string })[]
  /** The hint for a person if there is nothing to show. */
  empty: string
}

/**
 * Writes data to stdout in the requested form, and messages to stderr. By default a terminal gets tables, anything else
 * JSON. Cells and field values are neutralised here or, if a caller adds colour, by that caller.
 */
export class Output {
  readonly form: Form
  /** Whether the form was requested explicitly; errors then follow it. */
  readonly formGiven: boolean
  readonly quiet: boolean
  readonly verbose: boolean
  /** Colours for stdout. */
  readonly colours: Colours
  /** Colours for stderr. */
  readonly messageColours: Colours
  readonly nowMs: number = Date.now()
  readonly #csv = new Csv()
  #toldToWait = false

  constructor(flags: OutputFlags) {
    this.form = flags.output ?? (process.stdout.isTTY ? 'table' : 'json')
    this.formGiven = flags.output !== undefined
    this.quiet = flags.quiet ?? false
    this.verbose = flags.verbose ?? false
    this.colours = pc.createColors(useColour(flags.color, process.stdout))
    this.messageColours = pc.createColors(useColour(flags.color, process.stderr))
  }

  /** Whether a person reads the output, so that relative times, colour and shortened lists are useful. */
  get forPeople(): boolean {
    return this.form === 'table'
  }

  /** Whether a person reads the output live, so that a long list is better shown in parts. */
  get onTerminal(): boolean {
    return this.forPeople && process.stdout.isTTY === true
  }

  /** A list: a table for people, one array as JSON, a row a line as NDJSON and CSV, an id a line as ids. */
  list<Row extends object>(rows: readonly Row[], view: View<Row>): void {
    if (this.form === 'json') this.data(`${safeJson(rows, 2)}\n`)
    else if (this.form === 'ndjson') this.data(rows.map(row => `${safeJson(row)}\n`).join(''))
    else if (this.form === 'csv') this.data(this.#csv.lines(rows))
    else if (this.form === 'id') this.data(rows.map(row => `${idOf(row)}\n`).join(''))
    else if (rows.length === 0) this.message(view.empty)
    else this.#table(rows, view)
  }

  #table<Row extends object>(rows: readonly Row[], { columns }: View<Row>): void {
    const cells = rows.map(row => columns.map(column => column.cell(row, this.colours)))
    this.data(renderTable(columns, cells, { width: columnsOf(process.stdout), title: this.colours.bold }))
  }

  /** Prints one object: `describe` gives the text for people; the other forms get its data. */
  one(row: object, describe: (colours: Colours) => string): void {
    if (this.form === 'json') this.data(`${safeJson(row, 2)}\n`)
    else if (this.form === 'ndjson') this.data(`${safeJson(row)}\n`)
    else if (this.form === 'csv') this.data(this.#csv.lines([row]))
    else if (this.form === 'id') this.data(`${idOf(row)}\n`)
    else this.data(fold(describe(this.colours), columnsOf(process.stdout)))
  }

  /** Throws a CliError, exit code 2, if the output is discarded, such as by a closed stdout. */
  mustNotBeLost(): void {
    if (!leadsNowhere()) return
    throw usageError(
      'The secret would be lost: standard output is discarded.',
      'Send it to a terminal, a file or a pipe. Nothing was created.',
    )
  }

  /**
   * Prints an object that is shown only once. Throws a CliError that says how to undo its creation if it cannot be
   * written.
   */
  secret(row: object, lost: LostSecret, describe: (colours: Colours) => string): void {
    const text = this.forPeople
      ? fold(describe(this.colours), columnsOf(process.stdout))
      : `${safeJson(row, this.form === 'json' ? 2 : undefined)}\n`
    try {
      writeWhole(printable(text))
    } catch (error) {
      throw secretLost(lost, `Standard output cannot be written: ${fileFault(error)}.`)
    }
  }

  /** Writes text to stdout, without characters that would act on a terminal. */
  data(text: string): void {
    process.stdout.write(printable(text))
  }

  /** A message for people on stderr; silent with --quiet. */
  message(text: string): void {
    if (!this.quiet) this.notice(text)
  }

  /** A message that --quiet does not silence, because the data would mislead without it. */
  notice(text: string): void {
    process.stderr.write(`${fold(printable(asStarted(text)), columnsOf(process.stderr))}\n`)
  }

  warning(text: string): void {
    this.message(`${this.messageColours.yellow('Note:')} ${text}`)
  }

  /** Waits for another machine's answer, and says so if that takes long. */
  async waiting<T>(host: string, work: Promise<T>): Promise<T> {
    const timer = setTimeout(() => {
      if (!this.#toldToWait) this.message(`Still waiting for ${neutralise(host)} …`)
      this.#toldToWait = true
    }, LONG_MS)
    try {
      return await work
    } finally {
      clearTimeout(timer)
      this.#toldToWait = false
    }
  }

  /** A message of --verbose. */
  detail(text: string): void {
    if (this.verbose) process.stderr.write(`${this.messageColours.dim(printable(text))}\n`)
  }
}

/** What was made whose secret cannot be shown, and how to undo it; each a sentence without its stop. */
export type LostSecret = { made: string; undo: string }

export const secretLost = ({ made, undo }: LostSecret, why: string): CliError =>
  new CliError(
    exitCodes.failed,
    'SECRET_LOST',
    `${neutralise(made)}, and its secret is lost. ${why}`,
    `${neutralise(undo)}. Correct that, then run this again.`,
  )

export const lostToken = (id: string): LostSecret => ({
  made: `Access token ${id} was created`,
  undo: `Revoke it with: tidings tokens revoke ${id}`,
})

/** Node replaces a closed standard output by a device that discards everything. */
const leadsNowhere = (): boolean => {
  try {
    const { rdev } = fstatSync(1)
    return fstatSync(1).isCharacterDevice() && rdev === statSync(devNull).rdev
  } catch (error) {
    return codeOf(error) === 'EBADF'
  }
}

/** Writes everything, or throws. A pipe may be non-blocking. */
const writeWhole = (text: string): void => {
  let left = Buffer.from(text)
  while (left.length > 0) {
    try {
      left = left.subarray(writeSync(1, left))
    } catch (error) {
      if (codeOf(error) !== 'EAGAIN') throw error
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 10)
    }
  }
}

/** Names and values, one a line, aligned. Values may carry colours and must be neutralised. */
export const describeFields = (fields: [name: string, value: string][], colours: Colours): string => {
  const width = Math.max(...fields.map(([name]) => displayWidth(name)))
  return fields.map(([name, value]) => `${colours.dim(name.padEnd(width))}  ${value}\n`).join('')
}

/** A value from the server as a table cell: `–` for null, text neutralised, everything else as JSON. */
export const cellText = (value: unknown): string => {
  if (value === null || value === undefined || value === '') return '–'
  return typeof value === 'string' ? neutralise(value) : neutralise(JSON.stringify(value))
}

/** Decides by the flag, then NO_COLOR and FORCE_COLOR, then whether there is a terminal. */
export const useColour = (flag: boolean | undefined, stream: NodeJS.WriteStream): boolean => {
  if (flag !== undefined) return flag
  if (process.env.NO_COLOR) return false
  if (process.env.FORCE_COLOR && process.env.FORCE_COLOR !== '0') return true
  return stream.isTTY === true && process.env.TERM !== 'dumb'
}

/** A terminal's width; undefined without a terminal, where nothing is folded or cut. */
export const columnsOf = (stream: NodeJS.WriteStream): number | undefined => (stream.isTTY ? stream.columns : undefined)

const idOf = (row: object): string => {
  const { id } = row as { id?: unknown }
  if (typeof id !== 'string')
    throw usageError('This output has no ids.', 'Ask for another form, such as --output json.')
  return neutralise(id)
}
