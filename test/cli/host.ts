import { Readable, Writable } from 'node:stream'
import { run } from '../../cli/main.ts'
import type { Ended } from './tidings.ts'

// A process that runs command lines one after the other, each as `bin/tidings.js` would: by `run`, with streams, an
// environment and an exit code of its own.

export type Line = { args: string[]; env: Record<string, string> }

const collected = () => {
  const chunks: Buffer[] = []
  const stream = new Writable({
    write(chunk: Buffer, _encoding, done) {
      chunks.push(chunk)
      done()
    },
  })
  return { stream, text: () => Buffer.concat(chunks).toString() }
}

const put = (name: 'stdin' | 'stdout' | 'stderr', value: Readable | Writable) =>
  Object.defineProperty(process, name, { value, configurable: true })

const runLine = async ({ args, env }: Line): Promise<Ended> => {
  for (const name of Object.keys(process.env)) if (!(name in env)) delete process.env[name]
  Object.assign(process.env, env)
  const [stdout, stderr] = [collected(), collected()]
  put('stdin', Readable.from([]))
  put('stdout', stdout.stream)
  put('stderr', stderr.stream)
  const code = await run(args)
  return { code, stdout: stdout.text(), stderr: stderr.text() }
}

process.on('message', async (line: Line) => process.send!(await runLine(line)))
