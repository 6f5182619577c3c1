import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { after } from 'node:test'
import { saveProfile } from '../../cli/connection/profiles.ts'
import { createLog } from '../../server/log.ts'
import { startServer } from '../../server/main.ts'
import { prepareSandbox } from '../../server/sandbox.ts'
import { freePort } from '../support/ports.ts'
import { startReaderHere } from '../support/reader-here.ts'
import { isAtFullSize } from '../support/size.ts'
import { startTidings } from './tidings.ts'

/** A sandbox in a process of its own, whose profile is in `home`. */
export const launchSandbox = async (
  home: string,
  env: Record<string, string> = {},
): Promise<{ url: string; stop: () => Promise<void> }> => {
  const port = await freePort()
  const sandbox = startTidings(['server', 'start', '--sandbox'], {
    home,
    env: { TIDINGS_HOME: join(home, 'sandbox'), TIDINGS_PORT: String(port), TIDINGS_RETRY_SCHEDULE: '0.2,0.2', ...env },
  })
  const ended = new Promise<void>(resolve => sandbox.once('close', () => resolve()))
  sandbox.stdout.resume()
  let log = ''
  await new Promise<void>((resolve, reject) => {
    sandbox.stderr.on('data', chunk => {
      log += chunk
      if (/is ready/.test(log) && existsSync(join(home, 'tidings', 'profiles.json'))) resolve()
    })
    ended.then(() => reject(new Error(`the sandbox ended: ${log}`)))
  })
  const stop = () => {
    sandbox.kill('SIGTERM')
    return ended
  }
  return { url: `http://127.0.0.1:${port}`, stop }
}

/** The same in this process, where the server's code has been loaded already. */
const sandboxHere: typeof launchSandbox = async (home, env) => {
  const { config, credentials } = await prepareSandbox({
    ...{ TIDINGS_HOME: join(home, 'sandbox'), TIDINGS_PORT: String(await freePort()), TIDINGS_LOG_LEVEL: 'error' },
    ...{ TIDINGS_RETRY_SCHEDULE: '0.2,0.2', ...env },
  })
  const server = await startServer(config, createLog(config.logLevel), { readerTerms: { start: startReaderHere } })
  await server.ready
  const { XDG_CONFIG_HOME } = process.env
  process.env.XDG_CONFIG_HOME = home
  saveProfile('sandbox', { url: server.url, apiKey: credentials.apiKey, apiSecret: credentials.apiSecret })
  if (XDG_CONFIG_HOME === undefined) delete process.env.XDG_CONFIG_HOME
  else process.env.XDG_CONFIG_HOME = XDG_CONFIG_HOME
  return { url: server.url, stop: () => server.stop() }
}

/** One that ends with the test file; by day in this process. Answers with its base URL. */
export const startSandbox = async (home: string, env?: Record<string, string>): Promise<string> => {
  const { url, stop } = await (isAtFullSize ? launchSandbox : sandboxHere)(home, env)
  after(stop)
  return url
}
