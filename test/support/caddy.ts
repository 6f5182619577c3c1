import assert from 'node:assert/strict'

/**
 * A site of the Caddyfile as it is, but for what this machine has no name and no certificate of: where it listens and
 * leads to.
 */
export const caddyWith = (text: string, site: string, port: number, upstreams: string): string => {
  const begin = text.indexOf(`\n${site} {`)
  assert.ok(begin >= 0, site)
  const block = text.slice(begin, text.indexOf('\n}\n', begin) + 3)
  const here = block.replace(`\n${site} {`, `\nhttp://127.0.0.1:${port} {`).replace('127.0.0.1:4100', upstreams)
  assert.ok(here.includes(upstreams))
  return `{\n\tadmin off\n}\n${here}`
}
