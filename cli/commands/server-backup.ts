import { readFileSync, statSync } from 'node:fs'
import { text } from 'node:stream/consumers'
import { Command } from '@commander-js/extra-typings'
import type { Config } from '../../server/config.ts'
import type { Restored, Revocation } from '../../server/restore.ts'
import { databaseFile } from '../../shared/database-url.ts'
import { toIso } from '../../shared/time.ts'
import { configuration, idsInDatabase, withDatabase } from '../connection/server-database.ts'
import { Session } from '../connection/session.ts'
import { CliError, exitCodes, usageError } from '../errors.ts'
import { collect, examples } from '../options.ts'
import { cellText, type Output } from '../output/output.ts'
import { confirm } from '../output/prompt.ts'
import { count, relativeIso } from '../output/time.ts'
import { sinceOption, untilOption, windowOf } from '../window.ts'

export const backupCommand = () =>
  new Command('backup')
    .summary('write a SQLite database into a file, while servers run on it')
    .description(
      'Writes the database as of one moment into a new file that only its owner can read. Servers keep running. ' +
        'Copying the file instead would lose the content of its write-ahead log. For SQLite; MySQL and MariaDB have ' +
        'tools of their own: docs/operations.md.',
    )
    .argument('<path>', 'the file to write; it must not exist')
    .addHelpText('after', examples(['Each night', 'tidings server backup /backup/tidings-$(date +%F).sqlite']))
    .action(async (path, _options, command) => {
      const { output } = new Session(command)
      const file = embeddedFile(await configuration())
      await withCliErrors(async () => {
        const { backUp } = await import('../../server/restore.ts')
        backUp(file, path)
        const bytes = statSync(path).size
        output.one({ path, bytes }, () => '')
        output.message(`Written: ${path}, ${Math.ceil(bytes / 1024).toLocaleString('en-GB')} KiB.`)
      })
    })

export const restoreCommand = () =>
  new Command('restore')
    .summary('replace a SQLite database by a backup')
    .description(
      'Replaces the database by a file that `tidings server backup` wrote, and keeps the present one beside ' +
        'it. Access tokens and signing keys that are revoked in the present one are revoked in the backup too, ' +
        'and its schema is brought up to date. Refused while a server runs on it. Deliveries pending in the backup ' +
        'are sent (again). For MySQL and MariaDB: docs/operations.md, and `tidings server restored`.',
    )
    .argument('<path>', 'the backup')
    .option('-y, --yes', 'do not ask for confirmation')
    .addHelpText('after', examples(['Back to last night', 'tidings server restore /backup/tidings-2026-11-21.sqlite']))
    .action(async (path, _options, command) => {
      const session = new Session(command)
      const config = await configuration()
      const file = embeddedFile(config)
      await confirm(`Replace ${file} with ${path}? What was written since that backup is lost.`, session)
      await withCliErrors(async () => {
        const { restore } = await import('../../server/restore.ts')
        const { databaseClock } = await import('../../server/clock.ts')
        const done = await restore(config, path, databaseClock)
        session.output.one(done, () => '')
        tellRestored(session.output, done)
        if (done.kept !== undefined) session.output.message(`The database as it was: ${done.kept}.`)
      })
    })

export const revocationsCommand = () =>
  new Command('revocations')
    .summary('list what has been revoked, to be revoked again after a restore')
    .description(
      'Lists the revoked access tokens and signing keys. A database that is restored to an earlier ' +
        'time has forgotten them: keep this list beside the backups, as new as their binary log, or take it from the ' +
        'database that will be replaced. `tidings server restored` reads it.',
    )
    .addOption(sinceOption('only those'))
    .addOption(untilOption('only those'))
    .addHelpText(
      'after',
      examples(['Each hour, beside the binary log', 'tidings server revocations --output json > revocations.json']),
    )
    .action(async (options, command) => {
      const { output } = new Session(command)
      const { since, until } = windowOf(output, options)
      await withDatabase(async database => {
        const { listRevocations } = await import('../../server/restore.ts')
        const from = since === undefined ? 0 : Date.parse(since)
        const to = until === undefined ? Number.POSITIVE_INFINITY : Date.parse(until)
        const found = (await listRevocations(database, from)).filter(({ revokedAt }) => revokedAt <= to)
        output.list(
          found.map(({ kind, id, revokedAt }) => ({ kind, id, revokedAt: toIso(revokedAt) })),
          {
            columns: [
              { title: 'KIND', cell: row => row.kind },
              { title: 'ID', cell: row => cellText(row.id) },
              { title: 'REVOKED', cell: row => relativeIso(row.revokedAt, output.nowMs) },
            ],
            empty: 'Nothing has been revoked.',
          },
        )
      })
    })

export const restoredCommand = () =>
  new Command('restored')
    .summary('after a restore: revoke again what was revoked since the backup')
    .description(
      'Run it once after a restore, before servers start: access tokens and signing keys that were revoked after ' +
        'the backup would be valid again. Reads the list of `tidings server revocations`, or, if there is none, ' +
        'revokes every access token except those to keep.',
    )
    .option('--revocations <file>', 'the list of `tidings server revocations --output json`, or - for stdin')
    .option('--revoke-tokens', 'there is no list: revoke every access token')
    .option('--keep <id>', 'with --revoke-tokens: keep this one, by id, name or API key (repeatable)', collect)
    .option('-y, --yes', 'do not ask for confirmation')
    .addHelpText(
      'after',
      examples(
        ['With the list from beside the backup', 'tidings server restored --revocations revocations.json'],
        ['Without a list: new tokens for everyone but ops', 'tidings server restored --revoke-tokens --keep ID'],
      ),
    )
    .action(async ({ revocations, revokeTokens, keep }, command) => {
      const session = new Session(command)
      if ((revocations === undefined) === (revokeTokens === undefined)) {
        throw usageError(
          'Say what was revoked since the backup: --revocations FILE, or --revoke-tokens if nobody knows.',
          'The list is what `tidings server revocations --output json` prints on the database that was lost.',
        )
      }
      if (keep && !revokeTokens) throw usageError('--keep belongs to --revoke-tokens.', 'Add it.')
      const wanted =
        revocations === undefined ? { keep: keep ?? [] } : { revocations: await readRevocations(revocations) }
      if ('keep' in wanted) {
        await confirm(`Revoke every access token${wanted.keep.length > 0 ? ' but those to be kept' : ''}?`, session)
      }
      await withDatabase(async (database, config) => {
        const { afterRestore } = await import('../../server/restore.ts')
        const { withClock } = await import('../../server/maintenance.ts')
        // A misspelt name would revoke what was to be kept.
        const asked =
          'keep' in wanted ? { keep: (await idsInDatabase(database, 'access_tokens', wanted.keep))! } : wanted
        const done = await withClock(database, clock => afterRestore(database, config, asked, clock))
        session.output.one(done, () => '')
        tellRestored(session.output, done)
      })
    })

const readRevocations = async (from: string): Promise<Revocation[]> => {
  const wrong = (why: string) =>
    usageError(
      `${from === '-' ? 'stdin' : from} is no list of revocations: ${why}.`,
      'Give what `tidings server revocations --output json` prints.',
    )
  let found: unknown
  try {
    found = JSON.parse(from === '-' ? await text(process.stdin) : readFileSync(from, 'utf8'))
  } catch (error) {
    throw wrong((error as Error).message)
  }
  if (!Array.isArray(found)) throw wrong('it is no JSON array')
  return found.map((each: Partial<Revocation>) => {
    const isKnown = each?.kind === 'access token' || each?.kind === 'signing key'
    if (!isKnown || typeof each.id !== 'string') throw wrong(`it has ${JSON.stringify(each)}`)
    return each as Revocation
  })
}

const tellRestored = (output: Output, { revokedTokens, revokedKeys, unknown }: Restored): void => {
  output.message(
    `Revoked again: ${count(revokedTokens.length, 'access token')}, ${count(revokedKeys.length, 'signing key')}.`,
  )
  if (unknown.length > 0) {
    output.message(`Not in this database, and therefore not valid: ${unknown.map(cellText).join(', ')}.`)
  }
}

const embeddedFile = ({ databaseUrl }: Config): string => {
  const file = databaseFile(databaseUrl)
  if (file !== undefined) return file
  throw new CliError(
    exitCodes.failed,
    'NOT_EMBEDDED',
    'This is for SQLite, and TIDINGS_DATABASE_URL names a server.',
    'MySQL and MariaDB are backed up and restored with tools of their own: docs/operations.md.',
  )
}

const withCliErrors = async (work: () => Promise<void>): Promise<void> => {
  const { BackupError } = await import('../../server/restore.ts')
  return work().catch(error => {
    if (!(error instanceof BackupError)) throw error
    throw new CliError(exitCodes.failed, 'BACKUP', `Nothing was done: ${error.message}.`, error.hint)
  })
}
