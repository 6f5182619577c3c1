import { readFile } from 'node:fs/promises'
import { findPackageJSON } from 'node:module'
import { dirname, join } from 'node:path'

/** The package's own folder, from source and from the built package alike. */
const root = dirname(findPackageJSON(import.meta.url)!)

/**
 * Receivers in this package, by the name of the page that tells how each is used: its title, and its files, the first
 * of which is all there is to copy.
 */
const RECEIVERS: Record<string, { title: string; files: string[] }> = {
  javascript: {
    title: 'TypeScript and JavaScript',
    files: ['koa.ts', 'express.ts', 'fastify.ts', 'fetch.ts', 'lambda.ts', 'worker.ts'],
  },
  python: { title: 'Python', files: ['python/tidings_receiver.py', 'python/main.py'] },
  go: { title: 'Go', files: ['go/tidings/receiver.go', 'go/main.go'] },
  java: { title: 'Java', files: ['java/TidingsReceiver.java', 'java/Main.java'] },
  csharp: { title: 'C# (not run)', files: ['csharp/TidingsReceiver.cs'] },
  php: { title: 'PHP', files: ['php/TidingsReceiver.php', 'php/index.php'] },
  ruby: { title: 'Ruby', files: ['ruby/tidings_receiver.rb', 'ruby/main.rb'] },
}

const HEAD = `<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
  :root { color-scheme: light dark }
  body { font: 1rem/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 60rem; padding: 1rem }
  pre { font-size: .85rem; overflow-x: auto; white-space: pre-wrap }
</style>
`

/** What the docs page says of receivers: each language, and where to read it. */
export const receiversIndex = `<style>
  #receivers { font: 1rem/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 1420px; padding: 1rem 20px }
</style>
<section id="receivers">
<strong>A receiver in your language</strong>, verified against the same test vectors:
${Object.entries(RECEIVERS)
  .map(([name, { title }]) => `<a href="docs/receivers/${name}">${title}</a>`)
  .join(' · ')} · <a href="docs/receivers/README">the rules, for any other</a>
</section>`

/** The page of a receiver, with its files below; undefined where there is none of this name. */
export const receiverPage = async (name: string): Promise<string | undefined> => {
  const known = Object.hasOwn(RECEIVERS, name) ? RECEIVERS[name] : undefined
  if (!known && name !== 'README') return undefined
  const { title, files } = known ?? { title: 'Receiving deliveries', files: [] }
  const page = await readFile(join(root, 'docs/receivers', `${name}.md`), 'utf8')
  const sources = await Promise.all(files.map(file => readFile(join(root, 'examples', file), 'utf8')))
  const listings = files.map((file, index) => `<h2>${file}</h2><pre><code>${escaped(sources[index]!)}</code></pre>`)
  return `${HEAD}<title>${escaped(title)} · Tidings webhooks</title>
<p><a href="../../docs">Tidings webhooks</a></p>
<pre>${escaped(page)}</pre>
${listings.join('\n')}
`
}

const escaped = (text: string): string => text.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;')
