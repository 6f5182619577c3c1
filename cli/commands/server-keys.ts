import { Command } from '@commander-js/extra-typings'
import type { ListedSigningKey, SigningKeyStatus } from '../../server/maintenance.ts'
import { toIso } from '../../shared/time.ts'
import { withDatabase } from '../connection/server-database.ts'
import { Session } from '../connection/session.ts'
import { examples } from '../options.ts'
import { cellText, describeFields, type Output, type View } from '../output/output.ts'
import { relativeTime } from '../output/time.ts'

interface ShownKey {
  /** The `kid`. */
  id: string
  kid: string
  status: SigningKeyStatus
  createdAt: string
  activeFrom: string
}

const shownKey = ({ kid, status, createdAt, activeFrom }: ListedSigningKey): ShownKey => ({
  id: kid,
  kid,
  status,
  createdAt: toIso(createdAt),
  activeFrom: toIso(activeFrom),
})

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
        const { listSigningKeys } = await import('../../server/maintenance.ts')
        const keys = await listSigningKeys(database, config)
        output.list(keys.map(shownKey), view(output))
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
        const { rotateSigningKey } = await import('../../server/maintenance.ts')
        const made = await rotateSigningKey(database, config)
        const key = shownKey({ ...made, status: 'next' })
        output.one(key, colours =>
          describeFields(
            [
              ['kid', cellText(key.kid)],
              ['Signs from', `${key.activeFrom}  ${colours.dim(relativeTime(made.activeFrom, made.createdAt))}`],
            ],
            colours,
          ),
        )
        output.message('Running servers publish it within a minute. See it with: tidings server keys list')
      })
    })

const view = ({ nowMs }: Output): View<ShownKey> => ({
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
