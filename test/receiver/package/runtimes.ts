import { createHash } from 'node:crypto'
import { existsSync } from 'node:fs'
import { mkdir, mkdtemp, rename, rm, writeFile } from 'node:fs/promises'
import path from 'node:path'
import { repository, run } from '../../scripts/checkout.ts'

const platform = `${process.platform}-${process.arch}`
const deno: Record<string, string> = {
  'linux-x64': 'linux-x64-glibc',
  'linux-arm64': 'linux-arm64-glibc',
  'darwin-x64': 'darwin-x64',
  'darwin-arm64': 'darwin-arm64',
}
const bun: Record<string, string> = { 'linux-arm64': 'linux-aarch64', 'darwin-arm64': 'darwin-aarch64' }
const workerd: Record<string, string> = {
  'linux-x64': 'linux-64',
  'linux-arm64': 'linux-arm64',
  'darwin-x64': 'darwin-64',
  'darwin-arm64': 'darwin-arm64',
}

/**
 * Where receivers live, by the npm packages that carry each one's executable as it is, so that no script has to run.
 */
const packages = [
  `node20@npm:node-${platform}@20`,
  `node22@npm:node-${platform}@22`,
  `@oven/bun-${bun[platform] ?? platform}@1.4`,
  `@deno/${deno[platform]}@2.9`,
  `@cloudflare/workerd-${workerd[platform]}@1`,
  'esbuild@0.28',
  'rollup@4',
  '@rollup/plugin-node-resolve@16',
  'typescript@5.9',
  'typescript50@npm:typescript@5.0',
  'express4@npm:express@4',
]

/** Installs them once, below node_modules, where the next run finds them; answers with the path of each. */
export const installRuntimes = async () => {
  const cache = path.join(repository, 'node_modules/.cache/tidings')
  const folder = path.join(cache, `runtimes-${createHash('sha256').update(packages.join()).digest('hex').slice(0, 12)}`)
  if (!existsSync(folder)) {
    await mkdir(cache, { recursive: true })
    const staging = await mkdtemp(path.join(cache, 'staging-'))
    await writeFile(path.join(staging, 'package.json'), '{"private":true}')
    const options = ['--no-audit', '--no-fund', '--ignore-scripts', '--prefer-offline', '--loglevel=error']
    const { code, stderr } = await run('npm', ['install', ...options, ...packages], { cwd: staging })
    if (code !== 0) throw new Error(`The runtimes that receivers live in could not be installed:\n${stderr}`)
    // Another run may have been first.
    await rename(staging, folder).catch(() => rm(staging, { recursive: true }))
  }
  const at = (name: string) => path.join(folder, 'node_modules', name)
  return {
    folder,
    node20: at('node20/bin/node'),
    node22: at('node22/bin/node'),
    bun: at(`@oven/bun-${bun[platform] ?? platform}/bin/bun`),
    deno: at(`@deno/${deno[platform]}/deno`),
    workerd: at(`@cloudflare/workerd-${workerd[platform]}/bin/workerd`),
    esbuild: at('esbuild/bin/esbuild'),
    rollup: at('rollup/dist/bin/rollup'),
    nodeResolve: at('@rollup/plugin-node-resolve/dist/es/index.js'),
    typescript: at('typescript/bin/tsc'),
    typescript50: at('typescript50/bin/tsc'),
    express4: at('express4'),
  }
}
