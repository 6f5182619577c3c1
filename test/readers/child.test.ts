import { spawn } from 'node:child_process'
import { availableParallelism } from 'node:os'
import { it } from 'node:test'
import { ReaderProcess } from '../../server/readers/child.ts'
import { migratedDatabase } from '../support/databases.ts'
import { eventually } from '../support/eventually.ts'

const skip = process.platform === 'linux' ? false : 'only Linux tells how long a process has waited for a processor'

it('a reader is known to wait while others have every processor', { skip }, async () => {
  const given = await migratedDatabase('sqlite')
  const heard = { message() {}, ready() {}, isOther() {}, failed() {}, ended() {} }
  const start = { databaseUrl: given.url, engine: 'sqlite', logLevel: 'silent', places: 1, timeMs: 15_000 }
  const reader = new ReaderProcess(start, heard)
  const others = Array.from({ length: 2 * availableParallelism() }, () => spawn(process.execPath, ['-e', 'for (;;);']))
  try {
    await eventually(
      'it to have waited',
      () => reader.starvedMs,
      ms => ms > 20,
    )
  } finally {
    reader.kill()
    for (const other of others) other.kill('SIGKILL')
    await given.drop()
  }
})
