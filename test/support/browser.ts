import { type ChildProcess, spawn } from 'node:child_process'
import { existsSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { delimiter, join } from 'node:path'
import { createInterface } from 'node:readline'
import { eventually } from './eventually.ts'

const NAMES = ['chromium', 'chromium-browser', 'google-chrome', 'chrome']

/** The Chromium of this machine; undefined where there is none. */
export const chromium = (process.env.PATH ?? '')
  .split(delimiter)
  .flatMap(folder => NAMES.map(name => join(folder, name)))
  .find(existsSync)

type Told = {
  id?: number
  method?: string
  sessionId?: string
  params?: Record<string, unknown>
  result?: unknown
  error?: { message: string }
}

export type Page = {
  /** What an expression comes to in the page; promises are awaited. */
  // biome-ignore lint/suspicious/noExplicitAny: tests read what they asked for
  evaluate(expression: string): Promise<any>
  /** Waits until an expression is true in the page. */
  until(what: string, expression: string): Promise<unknown>
  /** Types into what has the focus. */
  type(text: string): Promise<unknown>
  press(key: string, code: string, keyCode: number, modifiers?: number): Promise<void>
  screenshot(): Promise<Buffer>
  /** The URLs asked for, and what the page complained of: errors, and what its policy forbids. */
  requests: string[]
  complaints: string[]
  close(): Promise<unknown>
}

/** A headless Chromium, spoken to by its DevTools protocol. */
export const startBrowser = async (program: string) => {
  const profile = mkdtempSync(join(tmpdir(), 'tidings-browser-'))
  const child: ChildProcess = spawn(
    program,
    ['--headless=new', '--no-sandbox', '--disable-gpu', '--remote-debugging-port=0', `--user-data-dir=${profile}`],
    { stdio: ['ignore', 'ignore', 'pipe'] },
  )
  const url = await new Promise<string>((resolve, reject) => {
    createInterface(child.stderr!).on('line', line => {
      const found = /^DevTools listening on (ws:\S+)/.exec(line)?.[1]
      if (found) resolve(found)
    })
    child.once('exit', code => reject(new Error(`the browser ended with ${code}`)))
  })
  const socket = new WebSocket(url)
  await new Promise((resolve, reject) => {
    socket.onopen = resolve
    socket.onerror = () => reject(new Error('the browser was not reached'))
  })
  let lastId = 0
  const waiting = new Map<number, (told: Told) => void>()
  const listeners = new Map<string, (told: Told) => void>()
  socket.onmessage = ({ data }) => {
    const told = JSON.parse(String(data)) as Told
    if (told.id === undefined) return listeners.get(told.sessionId ?? '')?.(told)
    waiting.get(told.id)?.(told)
    waiting.delete(told.id)
  }
  const send = <Result>(method: string, params: object = {}, sessionId?: string): Promise<Result> =>
    new Promise((resolve, reject) => {
      const id = ++lastId
      waiting.set(id, ({ result, error }) => {
        if (error) reject(new Error(`${method}: ${error.message}`))
        else resolve(result as Result)
      })
      socket.send(JSON.stringify({ id, method, params, sessionId }))
    })

  return {
    /** Opens a page, as wide as is said, on a screen that is light or dark. */
    async open(url: string, { width = 1280, height = 900, dark = false } = {}): Promise<Page> {
      const { targetId } = await send<{ targetId: string }>('Target.createTarget', { url: 'about:blank' })
      const { sessionId } = await send<{ sessionId: string }>('Target.attachToTarget', { targetId, flatten: true })
      const requests: string[] = []
      const complaints: string[] = []
      listeners.set(sessionId, ({ method, params = {} }) => {
        if (method === 'Network.requestWillBeSent') requests.push((params.request as { url: string }).url)
        if (method === 'Runtime.exceptionThrown') complaints.push(JSON.stringify(params.exceptionDetails))
        const entry = params.entry as { level: string; text: string } | undefined
        if (method === 'Log.entryAdded' && entry?.level === 'error') complaints.push(entry.text)
      })
      const ask = <Result>(method: string, params: object = {}) => send<Result>(method, params, sessionId)
      for (const domain of ['Page', 'Network', 'Runtime', 'Log']) await ask(`${domain}.enable`)
      const size = { width, height, deviceScaleFactor: 1, mobile: width < 600 }
      await ask('Emulation.setDeviceMetricsOverride', size)
      const features = [{ name: 'prefers-color-scheme', value: dark ? 'dark' : 'light' }]
      await ask('Emulation.setEmulatedMedia', { features })
      await ask('Page.navigate', { url })
      const evaluate = async (expression: string) => {
        const asked = { expression, awaitPromise: true, returnByValue: true }
        type Answer = { result: { value?: unknown }; exceptionDetails?: { exception?: { description?: string } } }
        const { result, exceptionDetails } = await ask<Answer>('Runtime.evaluate', asked)
        if (exceptionDetails) throw new Error(exceptionDetails.exception?.description ?? expression)
        return result.value
      }
      return {
        evaluate,
        until: (what, expression) =>
          eventually(
            what,
            () => evaluate(expression).catch(() => false),
            found => found === true,
          ),
        type: text => ask('Input.insertText', { text }),
        async press(key, code, windowsVirtualKeyCode, modifiers = 0) {
          for (const type of ['rawKeyDown', 'keyUp'])
            await ask('Input.dispatchKeyEvent', { type, key, code, windowsVirtualKeyCode, modifiers })
        },
        async screenshot() {
          const { data } = await ask<{ data: string }>('Page.captureScreenshot', { format: 'png' })
          return Buffer.from(data, 'base64')
        },
        requests,
        complaints,
        close: () => send('Target.closeTarget', { targetId }),
      }
    },
    async stop(): Promise<void> {
      const ended = new Promise(resolve => child.once('exit', resolve))
      socket.close()
      child.kill()
      await ended
      rmSync(profile, { recursive: true, force: true, maxRetries: 5 })
    },
  }
}
