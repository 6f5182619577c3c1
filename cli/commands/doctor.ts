import { Command } from '@commander-js/extra-typings'
import { printChecks } from '../checks.ts'
import { examples } from '../options.ts'
import { Session } from '../session.ts'

export const doctorCommand = () =>
  new Command('doctor')
    .description(
      'Looks at everything between this machine and the server: settings, connection, TLS, clocks, access token; ' +
        'and with --webhook at that webhook, its last deliveries, and whether its endpoint is reached from here. ' +
        'Says of each whether it is well and what to do if not. Changes nothing. Exit code 1 if there is a problem.',
    )
    .option('--webhook <id>', 'look at this webhook too')
    .addHelpText(
      'after',
      examples(
        ['Why does nothing work?', 'tidings doctor'],
        ['Why does this webhook get nothing?', 'tidings doctor --webhook ID'],
        ['For a script', 'tidings doctor --output json'],
      ),
    )
    .action(async (options, command) => {
      const session = new Session(command)
      const { examineClient } = await import('../examination.ts')
      printChecks(session.output, await examineClient(session, options.webhook))
    })
