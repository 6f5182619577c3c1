import { CliError, exitCodes } from '../errors.ts'
import { type Colours, cellText, type Output } from '../output/output.ts'
import { asStarted } from '../output/program.ts'
import { displayWidth } from '../output/table.ts'
import { roomFor, wrap } from '../output/wrap.ts'

/** The result of one check. A `note` may be intended; a `problem` is not. */
export interface Finding {
  name: string
  status: 'ok' | 'note' | 'problem' | 'skipped'
  /** What was found, in at most a sentence. */
  found: string
  /** The next step, if there is one. */
  next: string | null
}

export const ok = (name: string, found: string): Finding => ({ name, status: 'ok', found, next: null })
export const note = (name: string, found: string, next: string): Finding => ({ name, status: 'note', found, next })
export const problem = (name: string, found: string, next: string): Finding => ({
  name,
  status: 'problem',
  found,
  next,
})
export const skipped = (name: string, found: string): Finding => ({ name, status: 'skipped', found, next: null })

/** Prints the findings. Throws a CliError, exit code 1, if one is a problem. */
export const printFindings = (output: Output, findings: Finding[]): void => {
  const checks = findings.map(each => ({
    ...each,
    found: asStarted(each.found),
    next: each.next && asStarted(each.next),
  }))
  const problems = checks.filter(({ status }) => status === 'problem')
  output.one({ ok: problems.length === 0, checks }, colours => describeFindings(checks, colours))
  if (problems.length === 0) {
    output.message('No problems found.')
    return
  }
  const names = [...new Set(problems.map(({ name }) => name))].join(', ')
  throw new CliError(
    exitCodes.failed,
    'PROBLEMS_FOUND',
    problems.length === 1 ? `There is a problem: ${names}.` : `There are ${problems.length} problems: ${names}.`,
    problems.length === 1
      ? 'See above what to do.'
      : 'See above what to do about each; the first may cause the others.',
  )
}

export const describeFindings = (findings: Finding[], colours: Colours): string => {
  const width = Math.max(...findings.map(({ name }) => displayWidth(name)))
  const room = roomFor(width + 5)
  const indent = ' '.repeat(width + 5)
  const mark = {
    ok: colours.green('✓'),
    note: colours.yellow('!'),
    problem: colours.red('✗'),
    skipped: colours.dim('–'),
  }
  return findings
    .map(({ name, status, found, next }) => {
      const lines = [
        ...wrap(cellText(found), room),
        ...(next === null ? [] : wrap(`→ ${cellText(next)}`, room).map(colours.bold)),
      ]
      return `${mark[status]} ${name.padEnd(width)}   ${lines.join(`\n${indent}`)}\n`
    })
    .join('')
}
