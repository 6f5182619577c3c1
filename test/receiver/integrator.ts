import { cp, mkdir, mkdtemp, readdir, symlink, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { fileURLToPath } from 'node:url'
import { buildKit } from './kit.ts'

const repository = fileURLToPath(new URL('../..', import.meta.url))

/** An integrator's project: the examples in TypeScript, and in its node_modules the kit as npm would put it there. */
export const startProject = async (): Promise<string> => {
  const folder = await mkdtemp(path.join(tmpdir(), 'tidings-integrator-'))
  for (const name of await readdir(path.join(repository, 'examples'))) {
    if (name.endsWith('.ts')) await cp(path.join(repository, 'examples', name), path.join(folder, name))
  }
  await cp(path.join(repository, 'examples/pull'), path.join(folder, 'pull'), { recursive: true })
  await writeFile(path.join(folder, 'package.json'), '{"type":"module","private":true}')
  const installed = path.join(folder, 'node_modules')
  await mkdir(installed)
  for (const name of await readdir(path.join(repository, 'node_modules'))) {
    if (!name.startsWith('@tidings'))
      await symlink(path.join(repository, 'node_modules', name), path.join(installed, name))
  }
  await buildKit(path.join(installed, '@tidings/receiver'))
  return folder
}
