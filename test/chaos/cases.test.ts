import assert from 'node:assert/strict'
import { describe, it } from 'node:test'
import { engines } from '../support/databases.ts'
import { isAtFullSize } from '../support/size.ts'
import { namedServers } from '../support/templates.ts'
import { runCases } from './case-runner.ts'
import { cases } from './cases/index.ts'

/** Most cases wait, for a lease or a stall. */
const AT_ONCE = 8
/** Of cases whose own size takes minutes. */
const SIZES: Record<string, number> = {
  'pending-429': 5_000,
  'history-429': 50_000,
  'healing-killed': 250,
  'healing-frozen': 250,
  'healing-restarted': 250,
  'healing-ordered': 250,
  plans: 20_000,
  races: 1_000,
  'recovery-latency': 8,
  starting: 6,
}

/** What takes longest begins first, so that nothing is waited for alone. */
const LONGEST = [
  ...['interrupted', 'terminated', 'migrate-killed', 'start-statements'],
  ...['sent-again', 'sent-again-killed', 'raced-webhooks'],
]
const isLong = (name: string): boolean => LONGEST.includes(name)

const families = engines.map(name => name.split(' ')[0]!)

/** Runs a case as `npm run chaos` does. One that changes a whole server gets a server of its own. */
const runCase = async (name: string, engine: string, isOwn = false, size = SIZES[name]) => {
  const said: string[] = []
  const isGreen = await runCases({
    names: [name],
    engines: [engine],
    size,
    ownsServers: false,
    repeat: 1,
    servers: isOwn ? [] : namedServers,
    say: line => said.push(line),
  })
  assert.ok(isGreen, said.join('\n'))
}

if (isAtFullSize)
  describe('cases', { concurrency: AT_ONCE }, () => {
    for (const { name, says, engines: of, needsOwnServer = false } of cases.toSorted(
      (one, other) => Number(isLong(other.name)) - Number(isLong(one.name)),
    )) {
      for (const engine of families.filter(family => of.some(one => one === family))) {
        it(`${name} (${engine}): ${says}`, () => runCase(name, engine, needsOwnServer))
      }
    }
  })
else
  for (const engine of families.filter(family => /^(mysql|mariadb)$/.test(family))) {
    describe(`a process that starts (${engine})`, () => {
      it('is ready although another hangs in a commit of its start', () =>
        runCase('start-statements', engine, false, 1))
    })
  }
