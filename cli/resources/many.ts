import { isId } from '../../shared/ids.ts'
import type { Session } from '../connection/session.ts'
import { CliError, exitCodes, usageError } from '../errors.ts'
import { readText } from '../options.ts'
import { type Colours, cellText, type View } from '../output/output.ts'
import { count } from '../output/time.ts'

/** The result of one of many. */
export interface Result {
  /** The id of the created or changed object; the given id if that failed. */
  id: string
  /** The given value. */
  of: string
  outcome: string
  error: { code: string; message: string; hint: string | null } | null
}

/** How many requests of one command run at once. */
const AT_ONCE = 5
const PROGRESS_EVERY_MS = 3_000

/** The ids or names that are given, or with `-` those on standard input, one a line, each once; perhaps none. */
export const givenIds = (given: string[]): string[] => {
  if (!given.includes('-')) return [...new Set(given)]
  if (given.length > 1) throw usageError('“-” and ids are both given.', 'Give the ids, or - to read them.')
  // A name may have spaces.
  const ids = readText('-', 'The list of ids')
    .split(/\r?\n/)
    .flatMap(line => {
      const words = line.split(/\s+/)
      return words.every(isId) ? words : [line.trim()]
    })
    .filter(Boolean)
  return [...new Set(ids)]
}

/**
 * Does the same for each. A failure of one does not stop the others; an error that concerns all, such as an unreachable
 * server, does. Throws a CliError, exit code 1, with the number of failures.
 */
export const forEach = async (
  session: Session,
  given: string[],
  [noun, nouns]: [string, string],
  work: (given: string) => Promise<Pick<Result, 'id' | 'outcome'>>,
): Promise<void> => {
  const { output } = session
  if (given.length === 0) {
    output.list([], view)
    output.message(`No ${nouns}: nothing to do.`)
    return
  }
  const results: Result[] = []
  const waiting = given.entries()
  let ended = 0
  let toldAt = performance.now()
  const next = async (): Promise<void> => {
    for (const [index, of] of waiting) {
      results[index] = await work(of)
        .then(done => ({ ...done, of, error: null }))
        .catch(error => ({ id: of, of, outcome: 'failed', error: ownFault(error) }))
      ended += 1
      if (performance.now() - toldAt < PROGRESS_EVERY_MS) continue
      toldAt = performance.now()
      output.message(`${ended} of ${given.length} …`)
    }
  }
  try {
    await Promise.all(Array.from({ length: AT_ONCE }, next))
  } catch (error) {
    if (ended > 0) output.list(results.filter(Boolean), view)
    throw error
  }
  output.list(results, view)
  const failed = results.filter(result => result.error)
  for (const { of, error } of failed) output.message(`${cellText(of)}: ${error?.message}`)
  output.message(
    `${count(results.length, noun, nouns)}: ${results.length - failed.length} done, ${failed.length} failed.`,
  )
  if (failed.length === 0) return
  throw new CliError(
    exitCodes.failed,
    'PARTLY_FAILED',
    `${failed.length} of ${count(results.length, noun, nouns)} failed.`,
    failed[0]?.error?.hint ?? 'Each has its reason.',
  )
}

/** With --dry-run, what is done for each: the request of the first, and how many there are. */
export const dryRunOfMany = async (
  session: Session,
  given: string[],
  [noun, nouns]: [string, string],
  show: (given: string) => Promise<unknown>,
): Promise<void> => {
  const [first] = given
  if (first === undefined) return forEach(session, given, [noun, nouns], () => Promise.reject())
  if (given.length > 1) session.output.message(`The request for the first of ${count(given.length, noun, nouns)}:`)
  await show(first)
}

/** An error that is not this one's fault would fail the others too. */
const ownFault = (error: unknown): NonNullable<Result['error']> => {
  if (
    !(error instanceof CliError) ||
    [exitCodes.unreachable, exitCodes.notPermitted].some(is => is === error.exitCode)
  ) {
    throw error
  }
  const { code, message, hint = null } = error
  return { code, message, hint }
}

const view: View<Result> = {
  columns: [
    { title: 'ID', isId: true, cell: row => cellText(row.id) },
    {
      title: 'OUTCOME',
      cell: ({ outcome, error }, colours: Colours) => (error ? colours.red : colours.green)(cellText(outcome)),
    },
    { title: 'OF', isId: true, optional: true, cell: row => cellText(row.of) },
  ],
  empty: 'Nothing was given.',
}
