import assert from 'node:assert/strict'
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after, before, beforeEach, describe, test } from 'node:test'
import { repository, run } from './checkout.ts'

/** As apt-get with a lock that another one holds for its first `$HELD` calls of each kind; it installs a `mariadbd`. */
const APT_GET = `#!/bin/sh
[ "$1" = --version ] && exit
echo "$@" >> "$FOLDER/calls"
case "$*" in
  *install*) lock=/var/lib/dpkg/lock-frontend kind=install ;;
  *) lock=/var/lib/apt/lists/lock kind=update ;;
esac
if [ "$(grep -c $kind "$FOLDER/calls")" -le "$HELD" ]; then
  echo "E: Could not get lock $lock. It is held by process 7 (unattended-upgr)" >&2
  exit 100
fi
[ $kind = update ] || { echo '#!/bin/sh' > "$FOLDER/mariadbd"; chmod +x "$FOLDER/mariadbd"; }
`

/** Root on Debian, whoever runs the tests. */
const AS_ROOT = ['--import', 'data:text/javascript,process.getuid=()=>0']

describe('installing a database server', () => {
  let folder: string
  before(async () => {
    folder = await mkdtemp(path.join(tmpdir(), 'tidings-apt-'))
    await writeFile(path.join(folder, 'apt-get'), APT_GET, { mode: 0o755 })
  })
  beforeEach(async () => {
    for (const left of ['calls', 'mariadbd']) await rm(path.join(folder, left), { force: true })
  })
  after(() => rm(folder, { recursive: true }))

  const install = (held: number, argument = '') => {
    const module = JSON.stringify(path.join(repository, 'scripts/database-server.js'))
    const script = `import { installServer } from ${module}; console.log(await installServer(${argument}))`
    const env = { PATH: `${folder}${path.delimiter}${process.env.PATH}`, FOLDER: folder, HELD: String(held) }
    return run(process.execPath, [...AS_ROOT, '--input-type=module', '--eval', script], { env })
  }

  test('answers with the server that it has brought', async () => {
    const { stdout, stderr } = await install(0)
    assert.equal(stdout, `${path.join(folder, 'mariadbd')}\n`)
    assert.equal(stderr, 'tidings: No database server was found; installing mariadb-server-core …\n')
  })

  test('waits for another package manager, whichever lock it holds, and says so once for each', async () => {
    const { stdout, stderr } = await install(2)
    assert.equal(stdout, `${path.join(folder, 'mariadbd')}\n`)
    assert.deepEqual(stderr.split('\n').slice(1, -1), [
      'tidings: Waiting for another package manager, at most 5 minutes: ' +
        'Could not get lock /var/lib/apt/lists/lock. It is held by process 7 (unattended-upgr)',
      'tidings: Waiting for another package manager, at most 5 minutes: ' +
        'Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 7 (unattended-upgr)',
    ])
    const calls = (await readFile(path.join(folder, 'calls'), 'utf8')).trim().split('\n')
    const inLine = '-o DPkg::Lock::Timeout=5 '
    const installing = 'install -y -qq --no-install-recommends mariadb-server-core'
    assert.deepEqual(
      calls,
      ['update -qq', installing].flatMap(args => [args, inLine + args, inLine + args]),
    )
  })

  test('stops waiting when it is told to', async () => {
    const { code, stderr } = await install(1000, 'AbortSignal.timeout(200)')
    assert.equal(code, 1)
    assert.match(stderr, /Waiting for another package manager[\s\S]*The operation was aborted/)
  })
})
