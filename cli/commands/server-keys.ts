import { Command } from '@commander-js/extra-typings'
import type { ListedSigningKey, SigningKeyStatus } from '../../server/maintenance.ts'
import { toIso } from '../../shared/time.ts'
import { withDatabase } from '../connection/server-database.ts'
import { Session } from '../connection/session.ts'
import { CliError, exitCodes } from '../errors.ts'
import { examples } from '../options.ts'
import { cellText, describeFields, type Output, type View } from '../output/output.ts'
import { count, relativeTime } from '../output/time.ts'

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
    .summary('list, rotate and revoke the keys that sign deliveries; replace the master key')
    .description(
      'The keys that sign deliveries, whose public halves are at /.well-known/jwks.json, and the master key, ' +
        'TIDINGS_MASTER_KEY, that seals them and the secrets of access tokens.',
    )
    .addCommand(listKeysCommand())
    .addCommand(rotateCommand())
    .addCommand(revokeCommand())
    .addCommand(resealCommand())
    .addHelpText(
      'after',
      examples(
        ['Which are there?', 'tidings server keys list'],
        ['The next one', 'tidings server keys rotate'],
        ['Others know a key', 'tidings server keys revoke KID'],
        ['After every process has TIDINGS_MASTER_KEY=new,old', 'tidings server keys reseal'],
      ),
    )

const listKeysCommand = () =>
  new Command('list')
    .summary('list signing keys')
    .description(
      'Lists the signing keys, newest first. next: published, signs from the time shown on; signing: ' +
        'signs now; published: no longer signs, kept for tokens in flight; retired: no longer needed by receivers; ' +
        'the scheduler deletes it; revoked: taken out of use.',
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
      'Creates the next signing key and publishes it. It signs ten minutes from now, ' +
        'when every receiver’s cache has expired; the previous key stays published until its last tokens have ' +
        'expired. Receivers need no change.',
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
        output.message('Running servers publish it within three seconds. See it with: tidings server keys list')
      })
    })

const revokeCommand = () =>
  new Command('revoke')
    .summary('take a signing key out of use, within three seconds')
    .description(
      'Removes a signing key from the published set and deletes its private half, for a key that others may know. ' +
        'When the command ends, running servers sign nothing more with it; one that is cut off from the database may ' +
        'still send what it had begun. A receiver refuses its tokens when its cache has expired, five minutes later ' +
        'at most. If it is the key that signs, deliveries wait until every receiver can know the next one, for five ' +
        'and a half minutes, and are then sent: none is lost.',
    )
    .argument('<kid>', 'the key’s id: tidings server keys list')
    .option('-y, --yes', 'do not ask for confirmation')
    .addHelpText('after', examples(['It has leaked', 'tidings server keys revoke KID']))
    .action(async (kid, _options, command) => {
      const session = new Session(command)
      const { confirm } = await import('../output/prompt.ts')
      await confirm(
        `Revoke the signing key ${cellText(kid)}? Deliveries may wait for five and a half minutes.`,
        session,
      )
      await withDatabase(async (database, config) => {
        const { revokeSigningKey } = await import('../../server/maintenance.ts')
        const { signsFrom, now } = await revokeSigningKey(database, config, kid).catch(error => {
          if (error.code !== 'NOT_FOUND') throw error
          throw new CliError(exitCodes.notFound, 'NOT_FOUND', error.message, 'See them with: tidings server keys list')
        })
        const revoked = { id: kid, kid, status: 'revoked', deliveriesFrom: toIso(signsFrom) }
        session.output.one(revoked, colours =>
          describeFields(
            [
              ['kid', cellText(kid)],
              ['Deliveries from', `${revoked.deliveriesFrom}  ${colours.dim(relativeTime(signsFrom, now))}`],
            ],
            colours,
          ),
        )
        session.output.message(
          signsFrom > now
            ? 'Until then nothing is sent, so that receivers can learn the next key. Pings answer UNAVAILABLE.'
            : 'Another key signs: nothing waits.',
        )
      })
    })

const resealCommand = () =>
  new Command('reseal')
    .summary('seal all secrets with the first master key, so that the others can be left out')
    .description(
      'Seals the secrets of access tokens, the signing keys and the answers under Idempotency-Keys again with the ' +
        'first key of TIDINGS_MASTER_KEY, while servers run. The master key is replaced in four steps: ' +
        '1. old,new for every process. 2. new,old for every process. 3. This, with new,old. ' +
        '4. new for every process. ' +
        'Each step is refused until the one before it is done everywhere.',
    )
    .addHelpText(
      'after',
      examples(['The third step', 'TIDINGS_MASTER_KEY_FILE=/run/secrets/new-and-old tidings server keys reseal']),
    )
    .action(async (_options, command) => {
      const { output } = new Session(command)
      await withDatabase(async (database, config) => {
        const { reseal } = await import('../../server/keys/reseal.ts')
        const { resealed, key } = await reseal(database, config.masterKeys)
        output.one({ resealed, masterKey: key }, () => '')
        output.message(
          `Sealed ${count(resealed, 'secret')} again; all are sealed with master key ${key}. ` +
            'The others can be left out of TIDINGS_MASTER_KEY now.',
        )
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
