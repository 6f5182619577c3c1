import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync } from 'node:fs'
import { mkdtemp } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { test } from 'node:test'
import { eventually } from '../support/eventually.ts'
import { repository } from './checkout.ts'

/** Starts a process that takes care of `folder` and of a process group, and says that group's id. */
const start = async (folder: string, atTheEnd: string) => {
  const script = `
    import { spawn } from 'node:child_process'
    import { aftercare } from ${JSON.stringify(path.join(repository, 'scripts/aftercare.js'))}
    const care = aftercare(${JSON.stringify(folder)})
    const group = spawn('sh', ['-c', 'sleep 60 & sleep 60'], { detached: true, stdio: 'ignore' })
    care.include(-group.pid)
    console.log(group.pid)
    ${atTheEnd}
  `
  const child = spawn(process.execPath, ['--input-type=module', '--eval', script], {
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  const [pid] = await once(child.stdout, 'data')
  return { child, group: Number(pid) }
}

const isRunning = (group: number): boolean => {
  try {
    return process.kill(-group, 0)
  } catch {
    return false
  }
}

const untilGone = (folder: string, group: number) =>
  eventually(
    'folder and processes to be gone',
    () => ({ folder: existsSync(folder), group: isRunning(group) }),
    left => !left.folder && !left.group,
  )

test('a temporary folder and processes do not outlive a process that is killed', async () => {
  const folder = await mkdtemp(path.join(tmpdir(), 'tidings-aftercare-'))
  const { child, group } = await start(folder, 'setTimeout(() => {}, 60_000)')
  assert.equal(isRunning(group), true)
  child.kill('SIGKILL')
  await untilGone(folder, group)
})

test('a temporary folder and processes are gone when aftercare is asked to end', async () => {
  const folder = await mkdtemp(path.join(tmpdir(), 'tidings-aftercare-'))
  const { child, group } = await start(folder, 'await care.end()')
  await once(child, 'exit')
  assert.equal(existsSync(folder), false)
  await untilGone(folder, group)
})
