import { Command } from '@commander-js/extra-typings'
import { toIso } from '../../shared/time.ts'
import { examples } from '../options.ts'
import { cellText, describeFields, type Output, type View } from '../output/output.ts'
import { relativeTime } from '../output/time.ts'
import { withDatabase } from '../server-database.ts'
import { Session } from '../session.ts'

interface Key {
  /** The `kid`. */
  id: string
  kid: string
  status: 'signing' | 'next' | 'published' | 'retired'
  createdAt: string
  activeFrom: string
}

export const keysCommand = () =>
  new Command('keys')
    .summary('list and rotate the keys that sign deliveries')
    .description('The keys that sign deliveries. Their public halves are at /.well-known/jwks.json.')
    .addCommand(listKeysCommand())
    .addCommand(rotateCommand())
    .addHelpText(
      'after',
      examples(['Which are there?', 'tidings server keys list'], ['The next one', 'tidings server keys rotate']),
    )

const listKeysCommand = () =>
  new Command('list')
    .summary('list signing keys')
    .description(
      'Lists the signing keys, the newest first. next: published, signs from the time shown on; signing: ' +
        'signs now; published: signs no more, kept for tokens on their way; retired: receivers need it no more.',
    )
    .addHelpText('after', examples(['Which signs now?', 'tidings server keys list']))
    .action(async (_options, command) => {
      const { output } = new Session(command)
      await withDatabase(async (database, config) => {
        const stored = await database
          .knex('signing_keys')
          .orderBy('generation', 'desc')
          .select<{ kid: string; created_at: number; active_from: number }[]>('kid', 'created_at', 'active_from')
        if (stored.length === 0) return output.rows([], view(output))
        const { openKeyring } = await import('../../server/keys/signing-keys.ts')
        const { createSealer } = await import('../../server/keys/seal.ts')
        const { databaseClock } = await import('../../server/clock.ts')
        const clock = await databaseClock(database)
        const keyring = await openKeyring(database, createSealer(config.masterKeys), clock)
        const signing = keyring.current().kid
        const published = new Set(keyring.jwks().keys.map(({ kid }) => kid))
        const now = clock.now()
        keyring.stop()
        clock.stop()
        output.rows(
          stored.map(
            ({ kid, created_at, active_from }): Key => ({
              id: kid,
              kid,
              status:
                kid === signing ? 'signing' : active_from > now ? 'next' : published.has(kid) ? 'published' : 'retired',
              createdAt: toIso(created_at),
              activeFrom: toIso(active_from),
            }),
          ),
          view(output),
        )
      })
    })

const rotateCommand = () =>
  new Command('rotate')
    .summary('publish the next signing key')
    .description(
      'Makes the next signing key and publishes it. It signs ten minutes from now, ' +
        'when every receiver’s cache has turned over; the one before stays published until its last tokens have ' +
        'expired. Nothing is to be done at the receivers.',
    )
    .addHelpText('after', examples(['Each year, or when a key may be known', 'tidings server keys rotate']))
    .action(async (_options, command) => {
      const { output } = new Session(command)
      await withDatabase(async (database, config) => {
        const { openKeyring } = await import('../../server/keys/signing-keys.ts')
        const { createSealer } = await import('../../server/keys/seal.ts')
        const { databaseClock } = await import('../../server/clock.ts')
        const clock = await databaseClock(database)
        const keyring = await openKeyring(database, createSealer(config.masterKeys), clock)
        const { kid, createdAt, activeFrom } = await keyring.rotate()
        keyring.stop()
        clock.stop()
        const key: Key = { id: kid, kid, status: 'next', createdAt: toIso(createdAt), activeFrom: toIso(activeFrom) }
        output.one(key, colours =>
          describeFields(
            [
              ['kid', cellText(kid)],
              ['Signs from', `${key.activeFrom}  ${colours.dim(relativeTime(activeFrom, createdAt))}`],
            ],
            colours,
          ),
        )
        output.message('Running servers publish it within a minute. See it with: tidings server keys list')
      })
    })

const view = ({ nowMs }: Output): View<Key> => ({
  columns: [
    { title: 'KID', cell: row => cellText(row.kid) },
    {
      title: 'STATUS',
      cell: ({ status }, colours) =>
        status === 'signing' ? colours.green(status) : status === 'next' ? colours.yellow(status) : colours.dim(status),
    },
    { title: 'SIGNS FROM', cell: row => relativeTime(Date.parse(row.activeFrom), nowMs) },
    { title: 'CREATED', optional: true, cell: row => row.createdAt },
  ],
  empty: 'No signing keys. The first is made when a server starts: tidings server start',
})
