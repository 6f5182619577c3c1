import { once } from 'node:events'
import { chmod, mkdir, readFile, writeFile } from 'node:fs/promises'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import path from 'node:path'
import { run } from './checkout.ts'

export type Package = { name: string; version: string; files?: Record<string, string>; manifest?: object }

/** An npm registry on this machine that has the packages given, made into tarballs below `folder`. */
export const startRegistry = async (folder: string, packages: Package[]) => {
  const tarballs = new Map<string, Buffer>()
  for (const { name, version, files = {}, manifest } of packages) {
    const source = path.join(folder, `${name}-${version}`)
    const all = { 'package.json': JSON.stringify({ name, version, ...manifest }), ...files }
    for (const [file, content] of Object.entries(all)) {
      await mkdir(path.dirname(path.join(source, file)), { recursive: true })
      await writeFile(path.join(source, file), content)
      await chmod(path.join(source, file), 0o755)
    }
    const packed = await run('npm', ['pack', source, '--pack-destination', folder], { cwd: folder })
    if (packed.code !== 0) throw new Error(packed.stderr)
    tarballs.set(`/${name}-${version}.tgz`, await readFile(path.join(folder, `${name}-${version}.tgz`)))
  }
  const fetched: string[] = []
  const server = createServer((request, response) => {
    const url = request.url!
    const tarball = tarballs.get(url)
    if (tarball) {
      fetched.push(url)
      return void response.end(tarball)
    }
    const found = packages.filter(({ name }) => url === `/${name}`)
    if (found.length === 0) return void response.writeHead(404).end('{}')
    const versions = found.map(({ name, version, manifest }) => {
      const dist = { tarball: `${address}/${name}-${version}.tgz` }
      return [version, { name, version, ...manifest, dist }]
    })
    response.end(JSON.stringify({ name: found[0]!.name, versions: Object.fromEntries(versions) }))
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  const address = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  const stop = () =>
    new Promise<void>(resolve => {
      server.close(() => resolve())
      server.closeAllConnections()
    })
  return { address, fetched, stop }
}
