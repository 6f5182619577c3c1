import { randomBytes } from 'node:crypto'
import { chmodSync, existsSync, writeFileSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { makeFolder } from '../shared/make-folder.ts'
import { databaseClock } from './clock.ts'
import { type Config, readConfig, SANDBOX_ENV } from './config.ts'
import { connect } from './database/connect.ts'
import { migrate } from './database/migrate.ts'
import { type Credentials, createAccessToken, findByApiKey } from './domain/access-tokens.ts'
import { createSealer } from './keys/seal.ts'
import { seedSamples } from './seed.ts'

const TOKEN_NAME = 'sandbox'

/**
 * Prepares the sandbox under TIDINGS_HOME without changing what exists: a master key and settings that allow loopback,
 * a SQLite database with the current schema, samples, and an access token with the permission admin. Throws
 * ConfigError.
 */
export const prepareSandbox = async (env: NodeJS.ProcessEnv): Promise<{ config: Config; credentials: Credentials }> => {
  const { TIDINGS_DATABASE_URL: _, TIDINGS_DATABASE_URL_FILE: _file, ...rest } = env
  const home = resolve(env.TIDINGS_HOME || '.tidings')
  makeFolder(home)
  chmodSync(home, 0o700)
  const settings = join(home, SANDBOX_ENV)
  if (!existsSync(settings)) {
    writeFileSync(
      settings,
      `# Settings of this sandbox. The environment goes before them.
TIDINGS_MASTER_KEY=${randomBytes(32).toString('base64')}
TIDINGS_ALLOW_NETWORKS=127.0.0.0/8,::1/128
TIDINGS_LOG_LEVEL=warn
`,
      { mode: 0o600 },
    )
  }
  keepLoopbackFromProxies()
  const config = readConfig(rest)
  const database = await connect(config.databaseUrl)
  try {
    await migrate(database)
    const clock = await databaseClock(database)
    await seedSamples(database, clock.now())
    const sealer = createSealer(config.masterKeys)
    const known = await database.knex('access_tokens').where({ name: TOKEN_NAME, revoked_at: null }).first('api_key')
    const found = known && (await findByApiKey(database.knex, sealer, known.api_key))
    const credentials = found
      ? { id: found.token.id, apiKey: found.token.apiKey, apiSecret: found.apiSecret }
      : await database.transaction(trx =>
          createAccessToken(trx, sealer, { name: TOKEN_NAME, permissions: ['admin'] }, clock.now()),
        )
    clock.stop()
    return { config, credentials }
  } finally {
    await database.close()
  }
}

/** Excludes loopback from proxies, because a sandbox sends to receivers on this machine, which a proxy cannot reach. */
const keepLoopbackFromProxies = (): void => {
  const name = process.env.no_proxy ? 'no_proxy' : 'NO_PROXY'
  process.env[name] = [process.env[name], 'localhost', '127.0.0.1', '[::1]'].filter(Boolean).join(',')
}
