import { Command } from '@commander-js/extra-typings'
import { toIso } from '../../shared/time.ts'
import { Session } from '../connection/session.ts'
import { usageError } from '../errors.ts'
import { dryRunOption, examples, yesOption } from '../options.ts'
import { cellText, describeFields } from '../output/output.ts'
import { confirm } from '../output/prompt.ts'
import { calledWebhook } from '../resources/cells.ts'
import { resolveId } from '../resources/ids.ts'
import { lookAtWebhook } from '../resources/webhook.ts'
import { mustShowSecret, readSecretFile } from '../resources/webhook-secrets.ts'
import { parseDuration } from '../times.ts'

const ROTATE = `mutation ($id: UUID!, $secret: String, $graceSeconds: Int) {
  rotated: rotateWebhookSecret(id: $id, secret: $secret, graceSeconds: $graceSeconds) { secret webhook { id url } }
}`

/** What the API takes if nothing is given. */
const USUAL_GRACE = '1d'

const rotateSecretUsage = () =>
  new Command('rotate-secret')
    .summary('replace the secret of a webhook that is signed by Standard Webhooks')
    .description(
      'Replaces the secret of a webhook that is signed by Standard Webhooks (--signing standard), and shows the new ' +
        'one only this once. The old one goes on signing beside it until its grace ends, so that the receiver can ' +
        'change over at any time. It answers when every request is signed with the new one.',
    )
    .argument('<id>', 'the webhook’s id or name')
    .option('--grace <duration>', 'how long the old secret goes on signing, at most 7d; 0 ends it now', USUAL_GRACE)
    .option('--secret-file <path>', 'your own secret (whsec_…) instead of a new one; - for standard input')
    .addOption(yesOption())
    .addOption(dryRunOption())
    .addHelpText(
      'after',
      examples(
        ['The receiver has a day to change over', 'tidings webhooks rotate-secret ID'],
        ['It leaked: the old one ends now', 'tidings webhooks rotate-secret ID --grace 0'],
        [
          'Into a file that only you can read',
          'tidings webhooks rotate-secret ID --output json | jq -r .secret | install -m 600 /dev/stdin secret.txt',
        ],
      ),
    )

export const rotateSecretCommand = () =>
  rotateSecretUsage().action(async (given, options, command) => {
    const session = new Session(command)
    const { output } = session
    const graceMs = options.grace === '0' ? 0 : parseDuration(options.grace)
    if (graceMs === undefined) throw usageError(`${options.grace} is no duration.`, 'Such as: --grace 12h')
    const secret = options.secretFile === undefined ? undefined : readSecretFile(options.secretFile)
    const id = await resolveId(session, 'webhooks', given)
    const variables = { id, ...(secret !== undefined && { secret }), graceSeconds: Math.round(graceMs / 1000) }
    if (session.dryRun) return void (await session.graphql(ROTATE, variables))
    mustShowSecret(session, secret)
    if (graceMs === 0) {
      const shown = calledWebhook(await lookAtWebhook(session, id), id)
      await confirm(
        `End the present secret of ${shown} now? A receiver that knows only that refuses everything.`,
        session,
      )
    }
    type Rotated = { rotated: { secret: string; webhook: { id: string; url: string } } }
    const { rotated } = await session.graphql<Rotated>(ROTATE, variables)
    const until = graceMs === 0 ? null : toIso(Date.now() + graceMs)
    const row = { ...rotated.webhook, secret: rotated.secret, oldSecretUntil: until }
    const lost = {
      made: `The secret of webhook ${cellText(id)} was replaced`,
      undo: `Replace it again with: tidings webhooks rotate-secret ${cellText(id)}`,
    }
    output.secret(row, lost, colours =>
      describeFields(
        [
          ['ID', cellText(row.id)],
          ['URL', cellText(row.url)],
          ['Secret', cellText(row.secret)],
          ['Old secret', until === null ? 'signs no more' : `signs too until ${cellText(until)}`],
        ],
        colours,
      ),
    )
    output.message('The secret is not shown again. Check a request with: tidings verify --secret-file FILE')
  })
