import { spawn } from 'node:child_process'
import { Command } from '@commander-js/extra-typings'
import { Session } from '../connection/session.ts'
import { examples, portNumber } from '../options.ts'
import { startSigningProxy } from '../proxy/signing-proxy.ts'

export const exploreCommand = () =>
  new Command('explore')
    .summary('open the API in a browser')
    .description(
      'Opens the explorer, with the schema, completion and a first query. This program signs the requests: ' +
        'key and secret do not reach the browser. Every program on this machine can use the address while it is ' +
        'served; other web pages cannot. Ctrl-C ends it.',
    )
    .option('--port <number>', 'port to serve it on; by default any free one', portNumber, 0)
    .option('--no-open', 'print the address and open no browser')
    .addHelpText(
      'after',
      examples(
        ['With the access token in use', 'tidings explore'],
        ['In a browser of your choice', 'tidings explore --no-open'],
      ),
    )
    .action(async (options, command) => {
      const session = new Session(command)
      const { output, connection } = session
      const ending = Promise.withResolvers<void>()
      const proxy = await startSigningProxy(connection, {
        port: options.port,
        onPassed: ({ method, path, status, durationMs }) =>
          output.detail(`${method} ${path} ${status} in ${durationMs} ms`),
      })
      for (const signal of SIGNALS) process.once(signal, () => ending.resolve())
      const url = `${proxy.url}/explorer#signed`
      output.data(`${url}\n`)
      output.message(`Asks ${connection.url.href} as ${connection.apiKey}. Ctrl-C ends it.`)
      if (options.open) open(url)
      await ending.promise
      await proxy.close()
    })

const SIGNALS = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const

/** Opens an address with the system's browser. If there is none, the printed address remains. */
const open = (url: string): void => {
  const [program, ...before] = OPENERS[process.platform] ?? ['xdg-open']
  const child = spawn(program!, [...before, url], { stdio: 'ignore', detached: true })
  child.on('error', () => {})
  child.unref()
}

const OPENERS: Partial<Record<NodeJS.Platform, string[]>> = {
  darwin: ['open'],
  win32: ['rundll32', 'url.dll,FileProtocolHandler'],
}
