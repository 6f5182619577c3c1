import Koa, { type Middleware } from 'koa'
import type { Log } from '../log.ts'
import { requestId } from './request-id.ts'

/** The server's middleware, in order. What each does is said in its own file. */
export const createApp = ({ log, open, signed }: { log: Log; open: Middleware[]; signed: Middleware[] }): Koa => {
  const app = new Koa()
  app.use(requestId(log))
  // First, since it is where nearly all requests go; the others have paths of their own.
  for (const middleware of signed) app.use(at('/graphql', middleware))
  for (const middleware of open) app.use(middleware)
  app.on('error', error => log.warn({ err: error }, 'a connection failed'))
  return app
}

const at =
  (path: string, middleware: Middleware): Middleware =>
  (ctx, next) =>
    ctx.path === path ? middleware(ctx, next) : next()
