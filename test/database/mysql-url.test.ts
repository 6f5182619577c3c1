import assert from 'node:assert/strict'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, describe, it } from 'node:test'
import { findServer } from '../../scripts/database-server.js'
import { startThrowAwayDatabase, type ThrowAwayDatabase } from '../../scripts/throw-away-database.js'
import { connect, rows } from '../../server/database/connect.ts'
import { parseMysqlUrl } from '../../server/database/mysql-url.ts'
import { cert, key } from '../delivery/localhost-certificate.ts'

describe('a database URL', () => {
  const refuses = (url: string, message: RegExp) =>
    it(`refuses ${url.replace(/.*@h\/d/, '') || url}`, () => {
      assert.throws(
        () => parseMysqlUrl(url),
        error => {
          assert.match((error as Error).message, message)
          assert.doesNotMatch((error as Error).message, /hunter2/)
          return true
        },
      )
    })

  it('has host, port, user, password and database, each as it was before it was encoded', () => {
    assert.deepEqual(parseMysqlUrl('mysql://a%40b:p%2Fw@[::1]:3307/db'), {
      host: '::1',
      port: 3307,
      user: 'a@b',
      password: 'p/w',
      database: 'db',
    })
  })
  it('leads to port 3306 where it names none', () => assert.equal(parseMysqlUrl('mysql://u@h/d').port, 3306))
  it('verifies the authority where it names one and no mode', () => {
    const folder = mkdtempSync(join(tmpdir(), 'tidings-url-'))
    writeFileSync(join(folder, 'ca.pem'), cert)
    assert.deepEqual(parseMysqlUrl(`mysql://u@h/d?ssl-ca=${folder}/ca.pem`).ssl, {
      rejectUnauthorized: true,
      verifyIdentity: false,
      ca: cert,
      cert: undefined,
      key: undefined,
    })
    rmSync(folder, { recursive: true })
  })
  it('verifies the host where the mode is VERIFY_IDENTITY, in either case', () => {
    const modes = ['VERIFY_IDENTITY', 'verify_identity', 'VERIFY_CA', 'REQUIRED']
    const found = modes.map(mode => parseMysqlUrl(`mysql://u@h/d?ssl-mode=${mode}`).ssl!)
    assert.deepEqual(
      found.map(({ rejectUnauthorized, verifyIdentity }) => [rejectUnauthorized, verifyIdentity]),
      [
        [true, true],
        [true, true],
        [true, false],
        [false, false],
      ],
    )
  })
  refuses(
    'mysql://u:hunter2@h/d?sslmode=require',
    /"sslmode", which is not one of ssl-mode, .*did you mean ssl-mode=REQ/,
  )
  refuses('mysql://u:hunter2@h/d?tls=true', /did you mean ssl-mode=REQUIRED\?/)
  refuses('mysql://u:hunter2@h/d?ssl-mod=REQUIRED', /did you mean ssl-mode\?/)
  refuses('mysql://u:hunter2@h/d?connectTimeout=5', /"connectTimeout", which is not one of/)
  refuses('mysql://u:hunter2@h/d?ssl-mode=PREFERRED', /without encryption, unseen; choose from DISABLED, REQUIRED/)
  refuses('mysql://u:hunter2@h/d?ssl-mode=ON', /ssl-mode=ON; choose from/)
  refuses('mysql://u:hunter2@h/d?ssl-mode=REQUIRED&ssl-mode=DISABLED', /ssl-mode twice/)
  refuses('mysql://u:hunter2@h/d?ssl-mode=DISABLED&ssl-ca=/x', /DISABLED, and also files/)
  refuses('mysql://u:hunter2@h/d?ssl-ca=/nowhere/ca.pem', /ssl-ca=\/nowhere\/ca\.pem, which cannot be read: ENOENT/)
  refuses('mysql://u:hunter2@127.0.0.1/d?ssl-mode=VERIFY_IDENTITY', /needs a host's name; 127\.0\.0\.1 is an address/)
  refuses('mysql://u:hunter2@h:port/d', /no URL such as mysql:/)
})

const program = findServer()
describe('an encrypted connection', { skip: program ? false : 'no database server is installed' }, () => {
  let server: ThrowAwayDatabase
  let folder: string
  before(async () => {
    folder = mkdtempSync(join(tmpdir(), 'tidings-tls-'))
    writeFileSync(join(folder, 'cert.pem'), cert)
    writeFileSync(join(folder, 'key.pem'), key)
    writeFileSync(join(folder, 'other.pem'), OTHER_AUTHORITY)
    const settings = [`--ssl-cert=${folder}/cert.pem`, `--ssl-key=${folder}/key.pem`]
    server = await startThrowAwayDatabase(program, { settings })
  })
  after(async () => {
    await server?.stop()
    rmSync(folder, { recursive: true })
  })

  /** The cipher that the database says it is asked with; empty for none. */
  const cipher = async (options: string, host = 'localhost'): Promise<string> => {
    const url = server.url.replace('127.0.0.1', host)
    const database = await connect(`${url}/mysql${options}`, { poolSize: 1 })
    try {
      const [found] = await rows<{ Value: string }>(database.knex, "SHOW SESSION STATUS LIKE 'Ssl_cipher'")
      return found!.Value
    } finally {
      await database.close()
    }
  }

  it('is not made where none is asked for', async () => assert.equal(await cipher(''), ''))
  it('is made where one is required', async () => assert.match(await cipher('?ssl-mode=REQUIRED'), /^TLS_/))
  it('is made with a server whose authority is the one named', async () => {
    assert.match(await cipher(`?ssl-ca=${folder}/cert.pem`, '127.0.0.1'), /^TLS_/)
  })
  it('is made with a server whose name is the one it was asked by', async () => {
    assert.match(await cipher(`?ssl-mode=VERIFY_IDENTITY&ssl-ca=${folder}/cert.pem`), /^TLS_/)
  })
  it('is refused with a server of an authority that is not known', async () => {
    await assert.rejects(cipher('?ssl-mode=VERIFY_CA'), /self-signed|unable to verify/)
    await assert.rejects(cipher(`?ssl-ca=${folder}/other.pem`), /self-signed|unable to verify/)
  })
})

/** Of nobody: its key was thrown away. Good until 2126. */
const OTHER_AUTHORITY = `-----BEGIN CERTIFICATE-----
MIIBdjCCAR2gAwIBAgIUP35l1vNH9gTRI4Op/sfrt4bCo0owCgYIKoZIzj0EAwIw
EDEOMAwGA1UEAwwFb3RoZXIwIBcNMjYxMTIyMDYwMTI5WhgPMjEyNjEwMjkwNjAx
MjlaMBAxDjAMBgNVBAMMBW90aGVyMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE
iS6ohA/rBfHSSnR5X5m77s/VGX5pRRYCuTDpuWfMAjtMItEoW0GBXE3VXT0Td8TM
P8Ac9eZnFX4cAi31+4/HD6NTMFEwHQYDVR0OBBYEFJNjylcgMBzj5zTrNlaTmxGU
/gNtMB8GA1UdIwQYMBaAFJNjylcgMBzj5zTrNlaTmxGU/gNtMA8GA1UdEwEB/wQF
MAMBAf8wCgYIKoZIzj0EAwIDRwAwRAIgQVVA6td8pA3Hp63amIGYTqpJZY9p5S9T
VTBC1I+H2s8CIAuBKqIqnKhHZnz8WIII7pxYDEuLu2HFZR437L1kBzZ0
-----END CERTIFICATE-----`
