import { spawnSync } from 'node:child_process'
import { createHash, createPublicKey, verify } from 'node:crypto'
import { mkdtempSync, rmSync } from 'node:fs'
import { createRequire } from 'node:module'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { createReceiver, verifyDelivery } from '../../receiver/index.ts'
import { Mint } from '../../server/delivery/rehearsal/mint.ts'
import { keyOfSecret, standardSignature } from '../../shared/standard-webhooks.ts'
import { audience, body, good, iat, issuer, jti, keys, kid, mint, now, webhookId } from '../receiver/tokens.ts'

// What the verification of a delivery costs in CPU, by the receiver kit, by hand with no checks, and by the library of
// Standard Webhooks (HMAC), in one process and in turns. The kit costs at most LIMIT times what is done by hand, and so
// does its whole receiver, which claims each delivery and records it.

const LIMIT = 1.5
const { values: given } = parseArgs({ options: { rounds: { type: 'string', default: '2000' } } })
const ROUNDS = Number(given.rounds)
/** Until then the kit is still being compiled. */
const WARM_ROUNDS = 500
/** Turns of one or two milliseconds, of which many pass in one piece on a full machine too. */
const CALLS = 10
/** Rounds of some 200 ms: long enough for an undisturbed turn of each, short enough for one pace of the machine. */
const BLOCK = 25

const request = { authorization: `Bearer ${good}`, body: Buffer.from(body) }
const options = { issuer, audience, keys, now: () => now.getTime() }
const key = createPublicKey({ key: keys[0] as never, format: 'jwk' })

/** The signature, and JSON parsed once: nothing is compared. */
const byHand = (): unknown => {
  const token = request.authorization.slice('Bearer '.length)
  const [header, claims, signature] = token.split('.') as [string, string, string]
  const parsed = [header, claims].map(part => JSON.parse(Buffer.from(part, 'base64url').toString()))
  const signed = Buffer.from(token.slice(0, token.lastIndexOf('.')))
  if (!verify(null, signed, key, Buffer.from(signature, 'base64url'))) throw new Error('The signature does not match.')
  return [parsed, JSON.parse(request.body.toString())]
}
const byHandWithDigest = (): unknown => [byHand(), createHash('sha256').update(request.body).digest('base64url')]

/** A delivery of its own for each call of the receiver, which handles each once. */
const deliveries = Array.from({ length: (WARM_ROUNDS + ROUNDS) * CALLS }, (_, nth) => {
  const own = `${jti.slice(0, -8)}${String(nth).padStart(8, '0')}`
  const told = body.replace(jti, own)
  const { good } = new Mint({ issuer, audience, kid, key: mint.key, webhookId, jti: own, sub: own, iat, body: told })
  return { authorization: Buffer.from(`Bearer ${good}`).toString(), body: Buffer.from(told) }
})
const receiver = createReceiver(options).otherwise(() => {})
const received = async (): Promise<void> => {
  const { status } = await receiver.receive(deliveries.pop()!)
  if (status !== 200) throw new Error(`The receiver has answered ${status}.`)
}

const contenders: Record<string, () => unknown> = {
  'the kit': () => verifyDelivery(request, options),
  'the whole receiver': received,
  'Ed25519 and parsing, by hand': byHand,
  'the same and SHA-256': byHandWithDigest,
}

/** The library is downloaded; without the registry it is left out. */
const addStandardWebhooks = (): void => {
  const folder = mkdtempSync(join(tmpdir(), 'tidings-verification-'))
  const { status } = spawnSync(
    'npm',
    ['install', '--no-save', '--no-audit', '--no-fund', '--prefix', '.', 'standardwebhooks'],
    { cwd: folder },
  )
  if (status === 0) {
    const { Webhook } = createRequire(join(folder, 'x.js'))('standardwebhooks')
    const secret = `whsec_${Buffer.alloc(32, 7).toString('base64')}`
    const content = { id: 'msg', timestampSeconds: String(Math.floor(Date.now() / 1000)) }
    const headers = {
      'webhook-id': content.id,
      'webhook-timestamp': content.timestampSeconds,
      'webhook-signature': standardSignature(keyOfSecret(secret)!, { ...content, body }),
    }
    const webhook = new Webhook(secret)
    contenders['standardwebhooks (HMAC)'] = () => webhook.verify(body, headers)
  } else console.log('standardwebhooks cannot be installed on this machine, and is left out.')
  rmSync(folder, { recursive: true, force: true })
}

/** CPU microseconds a call. */
const cost = async (call: () => unknown): Promise<number> => {
  const before = process.cpuUsage()
  for (let n = 0; n < CALLS; n++) await call()
  const { user, system } = process.cpuUsage(before)
  return (user + system) / CALLS
}

const median = (values: number[]): number => values.toSorted((a, b) => a - b)[values.length >> 1]!

/** What else the machine does only adds to a turn: the least of each block is what was disturbed least. */
const leastOfBlocks = (values: number[]): number[] =>
  Array.from({ length: values.length / BLOCK }, (_, n) => Math.min(...values.slice(n * BLOCK, (n + 1) * BLOCK)))

addStandardWebhooks()
const costs = new Map(Object.keys(contenders).map(name => [name, [] as number[]]))
for (let round = -WARM_ROUNDS; round < ROUNDS; round++) {
  for (const [name, call] of Object.entries(contenders)) {
    const us = await cost(call)
    if (round >= 0) costs.get(name)!.push(us)
  }
}
const bare = leastOfBlocks(costs.get('Ed25519 and parsing, by hand')!)
console.log(`${ROUNDS} rounds of ${CALLS} calls each, in turns; CPU in the least of each ${BLOCK}, the median:`)
for (const [name, each] of costs) {
  const least = leastOfBlocks(each)
  const us = median(least)
  const ratio = median(least.map((us, block) => us / bare[block]!))
  const perSecond = String(Math.round(1e6 / us)).padStart(7)
  console.log(`${name.padEnd(30)} ${us.toFixed(1).padStart(7)} µs  ${perSecond}/s  × ${ratio.toFixed(2)}`)
  const isPromised = name === 'the kit' || name === 'the whole receiver'
  if (!isPromised || ratio <= LIMIT) continue
  console.error(`${name} costs ${ratio.toFixed(2)} times what is done by hand; at most ${LIMIT} is promised.`)
  process.exitCode = 1
}
