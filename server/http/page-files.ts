import { createReadStream, existsSync } from 'node:fs'
import { join } from 'node:path'
import { createGunzip } from 'node:zlib'
import type Router from '@koa/router'
import { root } from '../../shared/root.ts'
import { version } from '../../shared/version.ts'
import type { RequestState } from './request-id.ts'

// Serves what scripts/build-pages.js has built from packages that this package does not include.

const TYPES: Record<string, string> = { js: 'text/javascript', css: 'text/css' }

const pathOf = (page: string, file: string): string => join(root, 'dist/pages', page, `${file}.gz`)

/** The text of a page whose script is not built yet, in a checkout. */
export const unlessBuilt = (page: string): string =>
  existsSync(pathOf(page, 'view.js'))
    ? ''
    : '<p>The rest of this page is not built yet. npm start builds it within seconds, npm run build too.</p>\n'

/** Serves scripts and styles below a page's path, in their stored compression if the client accepts it. */
export const servePageFiles = (router: Router<RequestState>, page: string, files: readonly string[]): void => {
  for (const file of files) {
    const path = pathOf(page, file)
    router.get(`/${page}/${file}`, (ctx, next) => {
      if (!existsSync(path)) return next()
      ctx.vary('Accept-Encoding')
      ctx.set('Cache-Control', 'public, max-age=86400')
      ctx.set('X-Content-Type-Options', 'nosniff')
      ctx.type = TYPES[file.split('.').at(-1)!]!
      const isTaken = ctx.acceptsEncodings('gzip', 'identity') === 'gzip'
      if (isTaken) ctx.set('Content-Encoding', 'gzip')
      ctx.body = isTaken ? createReadStream(path) : createReadStream(path).pipe(createGunzip())
    })
  }
}

/** The policy with which the browser refuses every request of a page to another host. */
export const policyOf = (more: Record<string, string>): string =>
  Object.entries({
    'default-src': "'none'",
    'script-src': "'self'",
    'style-src': "'self'",
    'img-src': "'self' data:",
    'font-src': 'data:',
    'connect-src': "'self'",
    'base-uri': "'none'",
    'form-action': "'none'",
    'frame-ancestors': "'none'",
    ...more,
  })
    .map(([name, value]) => `${name} ${value}`)
    .join('; ')

/** The hash in the path, so that each version has its own files. */
export const link = (path: string): string => `${path}?v=${encodeURIComponent(version)}`

export const escaped = (text: string): string =>
  text.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;')

/** A page in the style of the docs. */
export const pageOf = ({
  title,
  base = '',
  body,
}: {
  title: string
  base?: string
  body: string
}): string => `<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>${escaped(title)}</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="${base}${link('docs/style.css')}">
${body}`
