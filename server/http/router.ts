import { createRequire } from 'node:module'

/**
 * `@koa/router`, by `require`: its other entry imports `node:http`, which costs what `shared/node-http.ts` avoids.
 */
export const Router: typeof import('@koa/router').default = createRequire(import.meta.url)('@koa/router').Router
