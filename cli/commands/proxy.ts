import { Command } from '@commander-js/extra-typings'
import { Session } from '../connection/session.ts'
import { usageError } from '../errors.ts'
import { examples, portNumber } from '../options.ts'
import { cellText } from '../output/output.ts'
import { startSigningProxy } from '../proxy/signing-proxy.ts'

export const proxyCommand = () =>
  new Command('proxy')
    .summary('sign the requests of other programs on this machine')
    .description(
      'Listens on this machine, signs each request with the access token, and forwards it: any GraphQL client, ' +
        'Postman, curl or code generator works as it is. Every program on this machine can use it while it ' +
        'runs; web pages cannot. Ctrl-C ends it.',
    )
    .option('--port <number>', 'port to listen on; 0 takes any free one', portNumber, 4180)
    .option('--allow-origin <origin>', 'accept web pages of this origin too, such as http://localhost:3000')
    .addHelpText(
      'after',
      examples(
        ['Any client, at http://127.0.0.1:4180/graphql', 'tidings proxy'],
        ['Generate types; codegen.yml has schema: http://127.0.0.1:4180/graphql', 'npx graphql-codegen'],
        ['For a front end in development', 'tidings proxy --allow-origin http://localhost:3000'],
      ),
    )
    .action(async (options, command) => {
      const session = new Session(command)
      const { output, connection } = session
      const { allowOrigin } = options
      if (allowOrigin !== undefined && URL.parse(allowOrigin)?.origin !== allowOrigin) {
        throw usageError(
          `${JSON.stringify(allowOrigin)} is no origin.`,
          'Such as: --allow-origin http://localhost:3000',
        )
      }
      const ending = Promise.withResolvers<void>()
      const proxy = await startSigningProxy(connection, {
        port: options.port,
        ...(allowOrigin !== undefined && { allowOrigin }),
        onPassed: ({ method, path, status, durationMs, refused }) => {
          const line = `${method} ${cellText(path)}  ${status}  ${durationMs} ms`
          if (refused) output.warning(`${line}: ${refused}`)
          else output.message(line)
        },
      })
      for (const signal of SIGNALS) process.once(signal, () => ending.resolve())
      output.message(
        `${proxy.url}/graphql signs as ${connection.apiKey} and passes on to ${connection.url.href}. ` +
          'Every program on this machine can use it. Ctrl-C ends it.',
      )
      await ending.promise
      await proxy.close()
    })

const SIGNALS = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const
