// Builds dist/pages: scripts and styles of /docs and /explorer, built from packages that only the build needs. Each
// file is stored compressed, as it is sent.
import { createHash } from 'node:crypto'
import { existsSync, globSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import path from 'node:path'
import { fileURLToPath } from 'node:url'
import { gzipSync } from 'node:zlib'

const root = fileURLToPath(new URL('..', import.meta.url))
const folder = path.join(root, 'dist', 'pages')
const stamp = path.join(folder, 'stamp')

/** A hash of everything that the pages are built from: while it is the same, they are not built again. */
const sources = () => {
  const hash = createHash('sha256')
  for (const file of [
    ...globSync('pages/*', { cwd: root }).sort(),
    'shared/server-sent-events.ts',
    'package-lock.json',
    'scripts/build-pages.js',
  ])
    hash.update(readFileSync(path.join(root, file)))
  return hash.digest('hex')
}

/** Builds the pages, unless they exist and are up to date. */
export const buildPages = async () => {
  const made = sources()
  if (existsSync(stamp) && readFileSync(stamp, 'utf8') === made) return
  const { build, stop } = await import('esbuild')
  const { outputFiles } = await build({
    absWorkingDir: root,
    entryPoints: {
      'docs/view': 'pages/docs.ts',
      'docs/style': 'pages/docs.css',
      'explorer/view': 'pages/explorer.ts',
      'explorer/editor.worker': 'monaco-editor/esm/vs/editor/editor.worker.js',
      'explorer/json.worker': 'monaco-editor/esm/vs/language/json/json.worker.js',
      'explorer/graphql.worker': 'monaco-graphql/esm/graphql.worker.js',
    },
    outdir: folder,
    bundle: true,
    minify: true,
    format: 'esm',
    target: 'es2022',
    loader: { '.ttf': 'dataurl', '.svg': 'dataurl' },
    define: { 'process.env.NODE_ENV': '"production"' },
    legalComments: 'none',
    logLevel: 'warning',
    write: false,
  })
  // Ends esbuild's process, which would otherwise live as long as this one.
  await stop()
  rmSync(folder, { recursive: true, force: true })
  for (const { path: file, contents } of outputFiles) {
    mkdirSync(path.dirname(file), { recursive: true })
    writeFileSync(`${file}.gz`, gzipSync(contents, { level: 9 }))
  }
  writeFileSync(stamp, made)
}

if (import.meta.main) await buildPages()
