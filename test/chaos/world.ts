import { randomBytes, randomUUID } from 'node:crypto'
import { connect, type Database, insertMany } from '../../server/database/connect.ts'
import { migrate } from '../../server/database/migrate.ts'
import { createAccessToken } from '../../server/domain/access-tokens.ts'
import { createSealer } from '../../server/keys/seal.ts'
import { openKeyring } from '../../server/keys/signing-keys.ts'
import type { Jwk } from '../../shared/delivery-token.ts'
import type { Credentials } from '../../shared/hmac.ts'
import { masterKey } from '../delivery/server-process.ts'
import { addWebhooks } from '../support/webhooks.ts'
import { type Endpoint, ORGANISATIONS, organisationOf, PROJECTS } from './endpoints.ts'

/** What a run works on; the ids are in the order of the numbers that endpoints go by. */
export type World = {
  database: Database
  databaseUrl: string
  credentials: Credentials
  organisationIds: string[]
  projectIds: string[]
  userId: string
  webhookIds: string[]
  /** The keys that deliveries are signed with. */
  keys: Jwk[]
}

/** Makes an empty database on a server, and returns its address. */
export const createDatabase = async (serverUrl: string): Promise<string> => {
  const url = new URL(serverUrl)
  url.pathname = `tidings_chaos_${randomBytes(4).toString('hex')}`
  const server = await connect(serverUrl, { poolSize: 1 })
  await server.knex.raw('CREATE DATABASE ?? CHARACTER SET utf8mb4', [url.pathname.slice(1)])
  await server.close()
  return url.href
}

/**
 * Fills a database with the schema, and with organisations, projects,
 * a token that may do everything, and a webhook for each endpoint.
 */
export const createWorld = async (
  databaseUrl: string,
  endpoints: readonly (Omit<Endpoint, 'behaviour'> & { url: string })[],
): Promise<World> => {
  const database = await connect(databaseUrl)
  await migrate(database)
  const now = Date.now()
  const times = { created_at: now, updated_at: now }
  const ids = (count: number) => Array.from({ length: count }, () => randomUUID() as string)
  const organisationIds = ids(ORGANISATIONS)
  const projectIds = ids(PROJECTS)
  const userId = randomUUID()
  const { knex } = database
  await insertMany(
    knex,
    'organisations',
    organisationIds.map((id, index) => ({ id, name: `Organisation ${index}`, ...times })),
  )
  await insertMany(
    knex,
    'projects',
    projectIds.map((id, index) => ({
      id,
      organisation_id: organisationIds[organisationOf(index)],
      name: `Project ${index}`,
      ...times,
    })),
  )
  await knex('users').insert({ id: userId, name: 'Ada Okafor', ...times })
  const sealer = createSealer([Buffer.from(masterKey, 'base64')])
  const credentials = await database.transaction(trx =>
    createAccessToken(trx, sealer, { name: 'chaos', permissions: ['admin'] }, now),
  )
  const keyring = await openKeyring(database, sealer, { now: () => Date.now() })
  keyring.stop()
  const webhookIds = await addWebhooks(
    knex,
    endpoints.map(({ url, events = [], organisations = [], projects = [], ordering = 'none' }) => ({
      accessTokenId: credentials.id,
      url,
      events,
      organisationIds: organisations.map(number => organisationIds[number]!),
      projectIds: projects.map(number => projectIds[number]!),
      ordering,
      createdAt: now,
    })),
  )
  return {
    database,
    databaseUrl,
    credentials,
    organisationIds,
    projectIds,
    userId,
    webhookIds,
    keys: keyring.jwks().keys,
  }
}
