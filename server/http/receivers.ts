import { readFileSync } from 'node:fs'
import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { marked } from 'marked'
import { root } from '../../shared/root.ts'
import { escaped, link, pageOf } from './page-files.ts'

/**
 * The receivers in this package, by the name of the page that explains each: its title, its files, and the shortest
 * example.
 */
const RECEIVERS: Record<string, { title: string; files: string[]; shown: string }> = {
  javascript: {
    title: 'TypeScript and JavaScript',
    files: ['koa.ts', 'express.ts', 'fastify.ts', 'fetch.ts', 'lambda.ts', 'worker.ts'],
    shown: 'koa.ts',
  },
  python: { title: 'Python', files: ['python/tidings_receiver.py', 'python/main.py'], shown: 'python/main.py' },
  go: { title: 'Go', files: ['go/tidings/receiver.go', 'go/main.go'], shown: 'go/main.go' },
  java: { title: 'Java', files: ['java/TidingsReceiver.java', 'java/Main.java'], shown: 'java/Main.java' },
  csharp: { title: 'C# (not run)', files: ['csharp/TidingsReceiver.cs'], shown: 'csharp/TidingsReceiver.cs' },
  php: { title: 'PHP', files: ['php/TidingsReceiver.php', 'php/index.php'], shown: 'php/index.php' },
  ruby: { title: 'Ruby', files: ['ruby/tidings_receiver.rb', 'ruby/main.rb'], shown: 'ruby/main.rb' },
}

const listing = (source: string): string => `<pre><code>${escaped(source)}</code></pre>`

/** Pages without files of their own. */
const RULES: Record<string, string> = {
  README: 'Receiving deliveries',
  'standard-webhooks': 'Verified by a library of Standard Webhooks',
}

/** The section of the docs page about receivers, with links to each language. */
export const receiversIndex =
  (): string => `<p>A receiver in each language, all tested with the same 180 deliveries:</p>
${Object.entries(RECEIVERS)
  .map(
    ([name, { title, shown }]) => `<details><summary>${escaped(title)}</summary>
<p><a href="docs/receivers/${name}">Usage and files</a></p>
${listing(readFileSync(join(root, 'examples', shown), 'utf8'))}</details>`,
  )
  .join('\n')}
<p>For any other language: <a href="docs/receivers/README">the complete rules, step by step</a>.
A webhook with <code>signing: standard</code> is also
<a href="docs/receivers/standard-webhooks">verified by any library of Standard Webhooks</a>.</p>`

/** The page of a receiver with its files; undefined for an unknown name. */
export const receiverPage = async (name: string): Promise<string | undefined> => {
  const known = Object.hasOwn(RECEIVERS, name) ? RECEIVERS[name] : undefined
  if (!known && !Object.hasOwn(RULES, name)) return undefined
  const { title, files } = known ?? { title: RULES[name]!, files: [] }
  const text = await readFile(join(root, 'docs/receivers', `${name}.md`), 'utf8')
  const sources = await Promise.all(files.map(file => readFile(join(root, 'examples', file), 'utf8')))
  const listings = files.map((file, index) => `<h2 id="${file}">${file}</h2>${listing(sources[index]!)}`)
  return pageOf({
    title: `${title} · Tidings webhooks`,
    base: '../../',
    body: `<a class="skip" href="#content">Skip to the content</a>
<header><nav aria-label="Pages"><a href="../../docs">Tidings webhooks</a></nav></header>
<main id="content">
${linkedHere(await marked.parse(text))}
${listings.join('\n')}
</main>
<script type="module" src="../../${link('docs/view.js')}"></script>
`,
  })
}

/** Rewrites links of the repository's pages for this server: to other pages, to the files below, or removed. */
const linkedHere = (html: string): string =>
  html
    .replaceAll(
      /<h([2-6])>([^<]*)<\/h\1>/g,
      (_all, level, text) => `<h${level} id="${slugOf(text)}">${text}</h${level}>`,
    )
    .replaceAll(/<a href="([^"]*)">(.*?)<\/a>/g, (whole, href: string, text: string) => {
      if (/^(https?:|#)/.test(href)) return whole
      const page = /^([\w-]+)\.md(#.*)?$/.exec(href)
      if (page) return `<a href="${page[1]}${page[2] ?? ''}">${text}</a>`
      const file = /^\.\.\/\.\.\/examples\/(.+)$/.exec(href)?.[1]
      const isBelow = file !== undefined && Object.values(RECEIVERS).some(({ files }) => files.includes(file))
      return isBelow ? `<a href="#${file}">${text}</a>` : text
    })

const slugOf = (text: string): string =>
  text
    .toLowerCase()
    .replaceAll(/&[^;]+;|[^\p{L}\p{N} _-]/gu, '')
    .replaceAll(' ', '-')
