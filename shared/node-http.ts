/**
 * What a server and every command need of `node:http`. An `import` of it asks for all that it exports, of which
 * `WebSocket` loads some sixty modules of Node's own `fetch`.
 */
export const { createServer, request, setGlobalProxyFromEnv, STATUS_CODES } = process.getBuiltinModule('node:http')
