// node scripts/reference.ts: writes docs/reference/ from the sources of settings and error codes. A test says when to
// run it again.
import { globSync, readFileSync, writeFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { exitCodes } from '../cli/errors.ts'
import { settingsInWords } from '../server/config.ts'
import { migrationFaults } from '../server/database/migrate.ts'
import { errorMeanings, refusalMeanings } from '../shared/error-meanings.ts'
import { errorCodes, failureReasons, refusalReasons } from '../shared/vocabulary.ts'

const MADE = '<!-- Written by scripts/reference.ts from the sources: change those, and run it. -->'
const root = fileURLToPath(new URL('..', import.meta.url))

const table = (titles: string[], rows: string[][]): string =>
  [titles, titles.map(() => '---'), ...rows].map(cells => `| ${cells.join(' | ')} |`).join('\n')

const settings = (): string => `# Settings of a server

${MADE}

Environment variables, read once at the start. \`tidings server doctor\` reports every fault at once, unknown names
included. \`…_FILE\` names a file that holds a secret. \`tidings help environment\` lists what the command line reads.

${table(
  ['Name', 'Default', 'Meaning'],
  settingsInWords().map(({ name, fallback, means, isSecret }) => [
    `\`${name}\`${isSecret ? `, \`${name}_FILE\`` : ''}`,
    fallback === undefined ? '' : `\`${fallback}\``,
    means,
  ]),
)}
`

/** The command line's own codes, each with its exit codes. */
const ownCodes = (): string[][] => {
  const names = Object.keys(exitCodes).join('|')
  const thrown = new RegExp(`new CliError\\(\\s*exitCodes\\.(${names}),\\s*'([A-Z_]+)'`, 'g')
  const found = globSync('cli/**/*.ts', { cwd: root }).flatMap(file =>
    [...readFileSync(`${root}/${file}`, 'utf8').matchAll(thrown)].map(([, exit, code]) => ({
      code: code!,
      exit: exitCodes[exit as keyof typeof exitCodes],
    })),
  )
  found.push(...migrationFaults.map(code => ({ code, exit: exitCodes.failed })))
  const byCode = Map.groupBy(found, ({ code }) => code)
  return [...byCode]
    .map(([code, uses]) => [`\`${code}\``, [...new Set(uses.map(({ exit }) => exit))].sort().join(', ')])
    .sort(([a], [b]) => (a! < b! ? -1 : 1))
}

const errors = (): string => `# Error codes

${MADE}

## Codes of the API

In \`errors[].extensions.code\`, with the request's id. The message says what would be right.

${table(
  ['Code', 'Status', 'Means', 'Do'],
  errorCodes.map(code => {
    const { status, means, doThis } = errorMeanings[code]
    return [`\`${code}\``, status === undefined ? '200' : String(status), means, doThis]
  }),
)}

## Why a request is refused with 401

In \`extensions.reason\`, and in \`WWW-Authenticate\`.

${table(
  ['Reason', 'Means'],
  refusalReasons.map(reason => [`\`${reason}\``, refusalMeanings[reason]]),
)}

## Why an attempt had no usable answer

In \`attempts.failure\`, and in \`PING_FAILED\`.

${table(
  ['Reason', 'Means'],
  Object.entries(failureReasons).map(([reason, means]) => [`\`${reason}\``, means]),
)}

## Codes of the command line

With \`--output json\` in \`error.code\`; message and hint say what was wrong and what to do. An error of the server
keeps its code. All exit codes: \`tidings help exit-codes\`.

${table(['Code', 'Exit code'], ownCodes())}
`

export const pages: Record<string, () => string> = {
  'docs/reference/settings.md': settings,
  'docs/reference/errors.md': errors,
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  for (const [path, page] of Object.entries(pages)) writeFileSync(`${root}/${path}`, page())
}
