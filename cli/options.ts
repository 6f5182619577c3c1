import { readFileSync, readSync } from 'node:fs'
import { isAbsolute } from 'node:path'
import { InvalidArgumentError, Option } from '@commander-js/extra-typings'
import { parseIso, toIso } from '../shared/time.ts'
import { type Permission, permissions } from '../shared/vocabulary.ts'
import { fileFault, usageError } from './errors.ts'
import { neutralise } from './output/neutralise.ts'
import { asStarted } from './output/program.ts'
import { foldCommand } from './output/wrap.ts'
import { parseDuration, parseTime } from './times.ts'

export const dryRunOption = () => new Option('--dry-run', 'show the request and send nothing')
export const yesOption = () => new Option('-y, --yes', 'do not ask for confirmation')

/** A help text's examples: the purpose, then the line to type. */
export const examples = (...lines: [purpose: string, line: string][]): string =>
  `\nExamples:\n${lines.map(example).join('\n\n')}`

const example = ([purpose, line]: [purpose: string, line: string]): string =>
  `  # ${purpose}\n${line.split('\n').map(prompted).join('\n')}`

const prompted = (line: string): string => `  $ ${foldCommand(asStarted(line))}`

/** For an option that may be repeated, and takes several values separated by commas. */
export const collect = (value: string, before: string[] | undefined): string[] => [
  ...(before ?? []),
  ...value
    .split(',')
    .map(part => part.trim())
    .filter(part => part !== ''),
]

/** For an option that may be repeated, whose values may have commas in them. */
export const gather = (value: string, before: string[] | undefined): string[] => [...(before ?? []), value]

/** The labels of `--label KEY=VALUE`; `none` alone means no labels. Throws a CliError, exit code 2. */
export const labelsOf = (given: string[] | undefined): Record<string, string> | undefined => {
  if (given === undefined) return undefined
  if (given.length === 1 && given[0] === 'none') return {}
  const labels = given.map((text): [string, string] => {
    const [key, ...value] = text.split('=')
    if (key && value.length > 0) return [key, value.join('=')]
    throw usageError(`${JSON.stringify(text)} is no label.`, 'Such as: --label team=payments. For none: --label none')
  })
  return Object.fromEntries(labels)
}

/** `all` means no filter, which the API writes as an empty list. */
export const filterList = (values: string[] | undefined): string[] | undefined => {
  if (values === undefined) return undefined
  if (!values.includes('all')) return values
  if (values.length > 1)
    throw usageError(`“all” is given with other values: ${values.join(', ')}.`, 'Give only “all”, or leave it out.')
  return []
}

/** The permissions of an option. Throws a CliError, exit code 2, for an unknown one. */
export const permissionList = (given: string[]): Permission[] =>
  given.map(name => {
    const permission = permissions.find(each => each === name)
    if (permission) return permission
    throw usageError(`${JSON.stringify(name)} is not a permission.`, `Choose from ${permissions.join(', ')}.`)
  })

export const wholeNumber = (value: string): number => {
  if (!/^\d+$/.test(value)) throw new InvalidArgumentError('Give a whole number.')
  return Number(value)
}

/** A Mango selector, a JSON object. Throws a CliError, exit code 2. */
export const parseSelector = (text: string): Record<string, unknown> => {
  const value = parseJson(text, 'The selector')
  if (typeof value === 'object' && value !== null && !Array.isArray(value)) return value as Record<string, unknown>
  throw usageError('The selector is not a JSON object.', `Such as: '{"status":"pending"}'`)
}

/** The values of a row's sort fields, as `--after-values` takes them. */
export const parseValues = (text: string): unknown[] => {
  const value = parseJson(text, 'What --after-values has')
  if (Array.isArray(value)) return value
  throw usageError('--after-values is not a JSON list.', `One value for each field of the sort, such as: '["open"]'`)
}

export const parseJson = (text: string, what: string): unknown => {
  try {
    return JSON.parse(text)
  } catch (error) {
    throw usageError(
      `${what} is not JSON: ${(error as Error).message}.`,
      'Put it in single quotes, so that the shell does not change it.',
    )
  }
}

/** The value itself, a file's content for `@path`, or standard input for `-`. */
export const readText = (value: string, what: string): string => {
  if (value === '-') return readBytes(0, what).toString('utf8')
  if (value.startsWith('@')) return readBytes(value.slice(1), what).toString('utf8')
  return value
}

/** A file's bytes; 0 is standard input. */
export const readBytes = (path: string | 0, what: string): Buffer => {
  try {
    return path === 0 ? readStandardInput() : readFileSync(path)
  } catch (error) {
    throw usageError(`${what} cannot be read: ${fileFault(error)}.`, path === 0 ? undefined : lookedIn(path))
  }
}

const lookedIn = (path: string): string =>
  isAbsolute(path) ? 'Check its path.' : `Looked for ${neutralise(path)} in ${neutralise(process.cwd())}.`

/** Reads to the end. The writer of a pipe may have made it non-blocking and be slower than this process. */
const readStandardInput = (): Buffer => {
  const chunks: Buffer[] = []
  const chunk = Buffer.alloc(65_536)
  while (true) {
    try {
      const length = readSync(0, chunk)
      if (length === 0) return Buffer.concat(chunks)
      chunks.push(Buffer.from(chunk.subarray(0, length)))
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException
      if (code === 'EOF') return Buffer.concat(chunks)
      if (code !== 'EAGAIN') throw error
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 10)
    }
  }
}

/**
 * An ISO time from `--since` and similar options, in any form that `parseTime` reads. Throws a CliError, exit code 2.
 */
export const pastTime = (text: string, flag: string, nowMs: number): string =>
  isoTime(text, flag, parseTime(text, nowMs), 'how long ago (15m, 1h30m, 7d, 1w), 10:00, yesterday')

/** An ISO time from `--expires`: a time, a date, or how long from now. Throws a CliError, exit code 2. */
export const futureTime = (text: string, flag: string, nowMs: number): string => {
  const ms = parseDuration(text)
  return isoTime(text, flag, ms === undefined ? parseIso(text) : nowMs + ms, 'how long from now (12h, 90d)')
}

const isoTime = (text: string, flag: string, ms: number | undefined, forms: string): string => {
  if (ms !== undefined && !Number.isNaN(new Date(ms).getTime())) return toIso(ms)
  throw usageError(
    `${JSON.stringify(text)} is no time for ${flag}.`,
    `Give ${forms}, a date (2026-11-21), or a time with its offset (2026-11-21T08:00:00Z).`,
  )
}

/** 0 means any free port. */
export const portNumber = (value: string): number => {
  if (/^\d{1,5}$/.test(value) && Number(value) < 65_536) return Number(value)
  throw new InvalidArgumentError('Give a number from 0 to 65535.')
}
