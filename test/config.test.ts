import assert from 'node:assert/strict'
import { it } from 'node:test'
import { ConfigError, readConfig } from '../server/config.ts'

const least = {
  TIDINGS_DATABASE_URL: 'sqlite:x',
  TIDINGS_MASTER_KEY: Buffer.alloc(32).toString('base64'),
  TIDINGS_HOME: '/nonexistent',
}
const faultsOf = (env: Record<string, string>): string[] => {
  try {
    readConfig(env)
    return []
  } catch (error) {
    assert.ok(error instanceof ConfigError)
    return error.faults
  }
}

it('A misspelt setting is a fault, which names the right one', () => {
  assert.deepEqual(faultsOf({ ...least, TIDINGS_CONCURENCY: '9', TIDINGS_MASTERKEY_FILE: 'x', TIDINGS_QUUX: '1' }), [
    'TIDINGS_CONCURENCY is not a setting; did you mean TIDINGS_CONCURRENCY?',
    'TIDINGS_MASTERKEY_FILE is not a setting; did you mean TIDINGS_MASTER_KEY_FILE?',
    'TIDINGS_QUUX is not a setting.',
  ])
})

it('What the command line reads may stand beside the settings of a server', () => {
  assert.deepEqual(faultsOf({ ...least, TIDINGS_URL: 'http://x', TIDINGS_API_KEY: 'k', TIDINGS_CA_FILE: '/x' }), [])
})

it('What is missing is said with what would be right', () => {
  assert.deepEqual(faultsOf({ TIDINGS_HOME: '/nonexistent' }), [
    'TIDINGS_DATABASE_URL is missing; say sqlite:PATH or mysql://user:password@host/database',
    'TIDINGS_MASTER_KEY is missing; make one with: openssl rand -base64 32',
  ])
})

it('A fault of the database URL does not repeat its password', () => {
  const faults = faultsOf({ ...least, TIDINGS_DATABASE_URL: 'mysql://u:hunter2@h/d?tls=true' })
  assert.match(faults.join(), /^TIDINGS_DATABASE_URL has the option "tls".*did you mean ssl-mode=REQUIRED\?$/)
})

it('An address of IPv6 makes a URL that can be used', () => {
  assert.equal(readConfig({ ...least, TIDINGS_HOST: '::1' }).baseUrl, 'http://[::1]:4100')
  assert.equal(readConfig({ ...least, TIDINGS_HOST: '::' }).baseUrl, 'http://localhost:4100')
})

it('The pools of connections have the sizes that are set', () => {
  const env = { ...least, TIDINGS_API_CONNECTIONS: '30', TIDINGS_DELIVERY_CONNECTIONS: '9' }
  assert.deepEqual(readConfig(env).connections, { api: 30, delivery: 9 })
})
