// The part of node:crypto that verifies. WebCrypto crosses to another thread and back for each call, which costs half
// as much as the signature itself; Node's own functions do not. Everywhere else WebCrypto serves.

type Key = { readonly type: string }

interface NodeCrypto {
  createPublicKey(key: { key: Uint8Array; format: 'der'; type: 'spki' }): Key
  verify(algorithm: null, data: Uint8Array, key: Key, signature: Uint8Array): boolean
  createHash(algorithm: 'sha256'): { update(bytes: Uint8Array): { digest(encoding: 'base64url'): string } }
  /** The same in one call, since Node 20.12. */
  hash?: (algorithm: 'sha256', bytes: Uint8Array, encoding: 'base64url') => string
}

/** Node's base64url, which is native: it leaves out what is none, and never pads. */
interface NodeBuffer {
  from(text: string, encoding: 'base64url'): Uint8Array<ArrayBuffer> & { toString(encoding: 'base64url'): string }
}

interface Host {
  process?: {
    versions?: Record<string, string | undefined>
    getBuiltinModule?: (name: string) => unknown
  }
  Buffer?: unknown
}

/**
 * Node's crypto, found without an import, so that every bundler and runtime takes this file. Undefined elsewhere: Bun
 * and Deno have the same names, with crypto of their own behind them.
 */
export const nodeCrypto: NodeCrypto | undefined = (() => {
  const { process } = globalThis as Host
  const { node, bun, deno } = process?.versions ?? {}
  if (node === undefined || bun !== undefined || deno !== undefined) return undefined
  try {
    return process?.getBuiltinModule?.('node:crypto') as NodeCrypto | undefined
  } catch {
    return undefined
  }
})()

export const nodeBuffer: NodeBuffer | undefined = nodeCrypto && ((globalThis as Host).Buffer as NodeBuffer | undefined)
