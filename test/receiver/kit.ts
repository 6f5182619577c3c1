import { cp, mkdir } from 'node:fs/promises'
import path from 'node:path'
import { buildReceiver } from '../../scripts/build-receiver.js'
import { repository } from '../scripts/checkout.ts'

/** Makes a folder with what the package @tidings/receiver has. In the checkout, another test may build it meanwhile. */
export const buildKit = async (folder: string): Promise<void> => {
  await mkdir(folder, { recursive: true })
  for (const name of ['package.json', 'README.md'])
    await cp(path.join(repository, 'receiver', name), path.join(folder, name))
  buildReceiver(path.join(folder, 'dist'))
}
