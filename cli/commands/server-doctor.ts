import { Command } from '@commander-js/extra-typings'
import { Session } from '../connection/session.ts'
import { printFindings } from '../doctor/findings.ts'
import { usageError } from '../errors.ts'
import { examples } from '../options.ts'

export const serverDoctorCommand = () =>
  new Command('doctor')
    .summary('find out what is wrong with this installation')
    .description(
      'Checks everything that a server needs: configuration, database, schema, clock, keys, network guard, ' +
        'TLS, port, and whether deliveries are sent; with --endpoint also whether this machine reaches one. ' +
        'Says for each whether it is in order, and what to do if not. Changes nothing. Exit code 1 on a problem.',
    )
    .option('--endpoint <url>', 'also check whether deliveries would reach this URL')
    .addHelpText(
      'after',
      examples(
        ['Before the first start, and when something is wrong', 'tidings server doctor'],
        ['Why does this endpoint get nothing?', 'tidings server doctor --endpoint https://example.com/hooks'],
        ['For monitoring', `tidings server doctor --output json | jq '.checks[] | select(.status == "problem")'`],
      ),
    )
    .action(async ({ endpoint }, command) => {
      const { output } = new Session(command)
      const url = endpoint === undefined ? undefined : URL.parse(endpoint)
      if (url === null || (url && !/^https?:$/.test(url.protocol))) {
        throw usageError(
          `${JSON.stringify(endpoint)} is no URL of an endpoint.`,
          'Such as: --endpoint https://example.com/hooks',
        )
      }
      const { inspectInstallation } = await import('../../server/doctor.ts')
      const { diagnoseInstallation } = await import('../doctor/server-doctor.ts')
      printFindings(output, await diagnoseInstallation(await inspectInstallation(process.env, url)))
    })
