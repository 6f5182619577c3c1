import { writeFileSync } from 'node:fs'
import { Session } from 'node:inspector/promises'
import { isMainThread } from 'node:worker_threads'
import './sources.ts'

// Loaded into a server with --import: SIGUSR2 starts a CPU profile, a second one ends it and writes it to a file.

const file = process.env.BENCH_PROFILE_FILE
let session: Session | undefined

const toggle = async (): Promise<void> => {
  if (session) {
    const { profile } = await session.post('Profiler.stop')
    writeFileSync(file!, JSON.stringify(profile))
    session = undefined
    return
  }
  session = new Session()
  session.connect()
  await session.post('Profiler.enable')
  await session.post('Profiler.start')
}

if (isMainThread && file) process.on('SIGUSR2', () => void toggle())
