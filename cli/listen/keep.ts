import { accessSync, constants, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { makeFolder } from '../../shared/make-folder.ts'
import { fileFault, usageError } from '../errors.ts'
import type { Output } from '../output/output.ts'
import { writeRequest } from '../verify/saved-request.ts'
import type { Arrival } from './receiver.ts'

/** A delivery that cannot be saved was still received. */
export const saving = (output: Output, work: () => void): void => {
  try {
    work()
  } catch (error) {
    output.warning(`The request could not be saved: ${fileFault(error)}.`)
  }
}

/** Checks that the folder is writable before the command begins. */
export const prepareFolder = (folder: string): void => {
  try {
    makeFolder(folder)
    accessSync(folder, constants.W_OK | constants.X_OK)
  } catch (error) {
    throw usageError(
      `The folder of --save cannot be used: ${fileFault(error)}.`,
      'Name one that this user can write to.',
    )
  }
}

/** Readable by this user only, because a token is valid for five minutes. */
export const save = (folder: string, arrival: Arrival, url: string): void => {
  const time = new Date(arrival.receivedAtMs).toISOString().replaceAll(':', '-')
  // Untrusted values must not choose the file's path.
  const name = `${time}-${(arrival.eventId ?? 'request').replace(/[^\w-]/g, '_').slice(0, 64)}.http`
  writeFileSync(join(folder, name), writeRequest(arrival, url), { mode: 0o600 })
}
