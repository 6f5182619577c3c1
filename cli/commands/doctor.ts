import { Command } from '@commander-js/extra-typings'
import { Session } from '../connection/session.ts'
import { printFindings } from '../doctor/findings.ts'
import { examples } from '../options.ts'

export const doctorCommand = () =>
  new Command('doctor')
    .description(
      'Checks everything between this machine and the server: settings, connection, TLS, clocks, access token; ' +
        'with --webhook also that webhook, its last deliveries, and whether this machine reaches its endpoint. ' +
        'Says for each whether it is in order, and what to do if not. Changes nothing. Exit code 1 on a problem.',
    )
    .option('--webhook <id>', 'check this webhook too')
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
