import { Command } from '@commander-js/extra-typings'
import { type Ask, graphql, LOOK_TIMEOUT_MS } from '../connection/client.ts'
import { openLive } from '../connection/live.ts'
import { Session } from '../connection/session.ts'
import { exitCodes } from '../errors.ts'
import { collect, dryRunOption, examples } from '../options.ts'
import { cellText } from '../output/output.ts'
import { formerTypeOption, typeOption } from '../resources/delivery-filters.ts'
import { resolveId } from '../resources/ids.ts'
import { knownStatuses } from '../resources/timeline.ts'
import { askViewer } from '../resources/viewer.ts'
import type { Filters } from '../screens/dashboard/state.ts'

const dashboardUsage = () =>
  new Command('dashboard')
    .description(
      'Shows the health of webhooks, deliveries as they happen, and one delivery’s story on one screen, ' +
        'with one key each to redeliver, ping, disable, enable and recover. Without a terminal, or with --output, ' +
        'it prints the present state once.',
    )
    .option('--webhook <id>', 'begin with this webhook')
    .option('--status <statuses>', 'begin with deliveries in these statuses only', collect)
    .addOption(typeOption('begin with this type only'))
    .addOption(formerTypeOption())
    .addOption(dryRunOption())
    .addHelpText(
      'after',
      examples(
        ['How are things?', 'tidings dashboard'],
        ['What goes wrong', 'tidings dashboard --status rejected,dropped'],
        ['Once, as text', 'tidings dashboard --output table'],
        [
          'Once, for a script',
          `tidings dashboard --output json | jq '.webhooks[] | select(.status == "inactive").url'`,
        ],
      ),
    )

export const dashboardCommand = () =>
  dashboardUsage().action(async (options, command) => {
    const session = new Session(command)
    const filters: Filters = {
      webhookId: await resolveId(session, 'webhooks', options.webhook),
      statuses: knownStatuses(options.status),
      eventType: options.type ?? options.eventType,
    }
    const { output } = session
    const isScreen = process.stdin.isTTY && process.stdout.isTTY && process.env.TERM !== 'dumb'
    if (!isScreen || output.formGiven || session.dryRun) {
      const { printSnapshot } = await import('../screens/dashboard/snapshot.ts')
      return printSnapshot(session, filters)
    }
    const viewer = await askViewer(document => session.graphql(document))
    const { url, profile } = session.settings
    const { connection } = session
    // In development mode React checks much more, and takes several times as long.
    process.env.NODE_ENV ??= 'production'
    const [{ Dashboard }, { showDashboard }, { screenColours }] = await Promise.all([
      import('../screens/dashboard/dashboard.ts'),
      import('../screens/dashboard/screen.ts'),
      import('../screens/dashboard/palette.ts'),
    ])
    const colours = screenColours(output.colours.isColorSupported)
    const ask: Ask = (document, variables) => graphql(connection, document, variables)
    const look: Ask = (document, variables) => graphql(connection, document, variables, { timeoutMs: LOOK_TIMEOUT_MS })
    const document = 'subscription { deliveries { id } }'
    const live = (signal: AbortSignal) => openLive({ connection, document, variables: {}, signal })
    const dashboard = new Dashboard({ ask, look, live }, viewer, filters, colours)
    await showDashboard({ dashboard, colours, place: { url: cellText(url?.value), profile: profile?.value } })
    // A request or a ping may still be under way; nobody waits for it any more.
    process.exit(exitCodes.done)
  })
