import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { after } from 'node:test'
import { freePort } from '../support/ports.ts'
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

/** One that ends with the test file. Answers with its base URL. */
export const startSandbox = async (home: string, env?: Record<string, string>): Promise<string> => {
  const { url, stop } = await launchSandbox(home, env)
  after(stop)
  return url
}
