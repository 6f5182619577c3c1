import { randomUUID } from 'node:crypto'
import { connect } from '../../server/database/connect.ts'
import { sealCarried } from '../../server/domain/webhook-requests.ts'
import { createSealer } from '../../server/keys/seal.ts'
import { newStandardSecret } from '../../shared/standard-webhooks.ts'
import { addWebhook } from '../support/webhooks.ts'

/** Stores a webhook with a secret and a static header, sealed with a master key, in a database that no server uses. */
export const addSigned = async (url: string, masterKey: string): Promise<{ id: string; secret: string }> => {
  const secret = newStandardSecret()
  const sealer = createSealer([Buffer.from(masterKey, 'base64')])
  const database = await connect(url)
  const [{ id: accessTokenId }] = await database.knex('access_tokens').select('id').limit(1)
  const id = await addWebhook(database.knex, { accessTokenId, url: `http://127.0.0.1:9/${randomUUID()}` })
  const carried = { secrets: [{ secret, until: null }], headers: { 'X-Gate': 'value-of-gate' } }
  await database
    .knex('webhooks')
    .where({ id })
    .update({ signing: 'standard', request_sealed: sealCarried(sealer, id, carried) })
  await database.close()
  return { id, secret }
}
