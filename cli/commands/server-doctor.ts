import { Command } from '@commander-js/extra-typings'
import { printChecks } from '../checks.ts'
import { examples } from '../options.ts'
import { Session } from '../session.ts'

export const serverDoctorCommand = () =>
  new Command('doctor')
    .summary('find out what is wrong with this installation')
    .description(
      'Looks at everything that a server needs: configuration, database, schema, clock, keys, network guard, port, and whether deliveries are sent. Says of each whether it is well and what to do if not. Changes nothing. Exit code 1 if there is a problem.',
    )
    .addHelpText(
      'after',
      examples(
        ['Before the first start, and when something is odd', 'tidings server doctor'],
        ['For monitoring', `tidings server doctor --output json | jq '.checks[] | select(.status == "problem")'`],
      ),
    )
    .action(async (_options, command) => {
      const { output } = new Session(command)
      const { examineServer } = await import('../server-examination.ts')
      printChecks(output, await examineServer(process.env))
    })
