import { Command } from '@commander-js/extra-typings'
import { Session } from '../connection/session.ts'
import { printFindings } from '../doctor/findings.ts'
import { examples } from '../options.ts'

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
      const { diagnoseClient } = await import('../doctor/doctor.ts')
      printFindings(session.output, await diagnoseClient(session, options.webhook))
    })
