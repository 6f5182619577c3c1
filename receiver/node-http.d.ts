// The part of node:http that the test server uses. The package is built without Node's types, so that its users need
// none.
declare module 'node:http' {
  interface Server {
    once(event: 'error', listener: (error: Error) => void): void
    listen(port: number, host: string, listener: () => void): void
    address(): { port: number } | string | null
    close(listener: () => void): void
    closeAllConnections(): void
  }
  interface Incoming {
    url?: string
  }
  interface Outgoing {
    writeHead(status: number, headers: Record<string, string>): void
    end(body: string): void
  }
  export const createServer: (listener: (request: Incoming, response: Outgoing) => unknown) => Server
}
