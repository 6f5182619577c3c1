import { Command } from '@commander-js/extra-typings'
import { version } from '../../shared/version.ts'
import { difference, serverVersion } from '../connection/server-version.ts'
import { Session } from '../connection/session.ts'
import { dryRunOption, examples } from '../options.ts'
import { cellText, describeFields } from '../output/output.ts'
import { relativeIso } from '../output/time.ts'
import { askViewer, describeSight } from '../resources/viewer.ts'

export const whoamiCommand = () =>
  new Command('whoami')
    .description('Shows the access token in use: its permissions, what it sees, and when it expires.')
    .addOption(dryRunOption())
    .addHelpText(
      'after',
      examples(
        ['Which token is this?', 'tidings whoami'],
        ['On another server', 'tidings whoami --profile production'],
      ),
    )
    .action(async (_options, command) => {
      const session = new Session(command)
      const asked = session.dryRun ? undefined : serverVersion(session.url)
      const viewer = await askViewer(document => session.graphql(document))
      const versions = { server: (await asked) ?? null, cli: version }
      const { url, profile } = session.settings
      session.output.one({ ...viewer, versions }, colours =>
        describeFields(
          [
            ['Name', cellText(viewer.name)],
            ['ID', cellText(viewer.id)],
            ['API key', cellText(viewer.apiKey)],
            ['Server', `${cellText(url?.value)}${profile ? colours.dim(`  profile ${cellText(profile.value)}`) : ''}`],
            ['Version', `${versions.server ?? 'unknown'}${colours.dim(`  command line ${version}`)}`],
            ['Permissions', cellText(viewer.permissions.join(', '))],
            ['Sees', describeSight(viewer)],
            [
              'Expires',
              viewer.expiresAt
                ? `${cellText(viewer.expiresAt)}  ${colours.dim(relativeIso(viewer.expiresAt, session.output.nowMs))}`
                : 'never',
            ],
          ],
          colours,
        ),
      )
      const differ = difference(versions.server ?? undefined, version)
      if (differ) session.output.warning(differ)
    })
