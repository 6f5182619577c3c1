import { createCipheriv, createDecipheriv, createHash, createSecretKey, type KeyObject, randomBytes } from 'node:crypto'

/**
 * Encrypts secrets at rest. `context` names the owner of the secret, so that sealed text moved to another row does not
 * open.
 */
export type Sealer = { seal(secret: string, context: string): string; open(sealed: string, context: string): string }

const ALGORITHM = 'aes-256-gcm'

/**
 * @param masterKeys 32 bytes each. The first seals; all of them open, so that a key can be replaced while servers run.
 */
export const createSealer = (masterKeys: Buffer[]): Sealer => {
  const byName = new Map(masterKeys.map(key => [masterKeyName(key), createSecretKey(key)]))
  const [[sealingName, sealing]] = [...byName] as [[string, KeyObject]]
  return {
    seal(secret, context) {
      const iv = randomBytes(12)
      const cipher = createCipheriv(ALGORITHM, sealing, iv).setAAD(Buffer.from(context))
      const text = Buffer.concat([cipher.update(secret, 'utf8'), cipher.final(), cipher.getAuthTag()])
      return `v1.${sealingName}.${iv.toString('base64url')}.${text.toString('base64url')}`
    },
    open(sealed, context) {
      const [version, name, iv, text] = sealed.split('.')
      const key = byName.get(name ?? '')
      if (version !== 'v1' || !iv || !text || !key) {
        throw new Error(
          `a secret of ${context} was sealed with master key ${name}, which TIDINGS_MASTER_KEY does not name`,
        )
      }
      const bytes = Buffer.from(text, 'base64url')
      const decipher = createDecipheriv(ALGORITHM, key, Buffer.from(iv, 'base64url'), { authTagLength: 16 })
      decipher.setAAD(Buffer.from(context)).setAuthTag(bytes.subarray(-16))
      return decipher.update(bytes.subarray(0, -16), undefined, 'utf8') + decipher.final('utf8')
    },
  }
}

/** A name for a master key that reveals nothing about it. */
export const masterKeyName = (key: Buffer): string =>
  createHash('sha256').update('tidings master key').update(key).digest('base64url').slice(0, 8)
