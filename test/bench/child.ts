import { fork } from 'node:child_process'
import { fileURLToPath } from 'node:url'

/** Starts a program of this folder as a process that answers each question with one message. */
export const startChild = async (file: string, args: string[] = [], execArgv: string[] = []) => {
  const child = fork(fileURLToPath(new URL(file, import.meta.url)), args, {
    execArgv: ['--disable-warning=ExperimentalWarning', ...execArgv],
  })
  const ended = new Promise<never>((_, reject) => {
    child.once('exit', code => reject(new Error(`${file} ended with ${code}`)))
  })
  ended.catch(() => {})
  const next = (): Promise<unknown> => Promise.race([new Promise(resolve => child.once('message', resolve)), ended])
  const first = await next()
  return {
    /** Its first message. */
    first,
    pid: child.pid!,
    tell: (message: object) => void child.send(message),
    ask: (message: object): Promise<unknown> => {
      const answer = next()
      child.send(message)
      return answer
    },
    stop: () => child.disconnect(),
  }
}

export type Child = Awaited<ReturnType<typeof startChild>>
