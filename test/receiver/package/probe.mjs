// Run by every runtime that receivers live in, with what npm has installed from the packed package.
import { createReceiver, fetchReceiver, memoryReplayStore, verifyDelivery } from '@tidings/receiver'
import { replayStoreCases, signDelivery, testKeys } from '@tidings/receiver/testing'
import vectorsFile from './vectors.mjs'

const { audience, issuer, keySets, vectors } = vectorsFile

/** The vectors that are not answered as they should be; of the key sets, those that can be given as they are. */
const wrongVectors = async () => {
  const wrong = []
  for (const {
    name,
    method,
    authorization,
    body,
    bodyBase64,
    spaces = 0,
    keySet,
    webhookIds,
    time,
    verdict,
  } of vectors) {
    if (keySet !== 'published') continue
    const receiver = createReceiver({
      issuer,
      audience,
      keys: keySets[keySet].body,
      now: () => time * 1000,
      onError: () => {},
      onRefused: () => {},
      ...(webhookIds && { webhookId: webhookIds }),
    })
    const bytes =
      bodyBase64 === undefined
        ? new TextEncoder().encode(body + ' '.repeat(spaces))
        : Uint8Array.from(atob(bodyBase64), character => character.charCodeAt(0))
    let handled = null
    const { status, fault = 'ok' } = await receiver.receive({ method, authorization, body: bytes }, event => {
      handled = event.id
    })
    if (status !== verdict.status || fault !== verdict.code || handled !== verdict.handled)
      wrong.push({ name, status, fault })
  }
  return wrong
}

const failures = async store => {
  const failed = []
  const check = ({ name, run }) => run().catch(error => failed.push(`${name}: ${error.message}`))
  await Promise.all(replayStoreCases(() => store).map(check))
  return failed
}

/** What a receiver answers and is given, with a replay store unless the one in memory is to do. */
export const probe = async (store = memoryReplayStore()) => {
  const types = []
  const receive = fetchReceiver(
    { issuer: 'https://tidings.test', audience: 'https://receiver.test/hooks', keys: testKeys, replayStore: store },
    ({ eventType }) => types.push(eventType),
  )
  const delivery = await signDelivery({ eventType: 'token_expired' })
  const statuses = []
  for (const request of [
    delivery.request,
    delivery.request,
    (await signDelivery({ audience: 'https://other.test' })).request,
    new Request('https://receiver.test/hooks'),
  ]) {
    statuses.push((await receive(request)).status)
  }
  const verified = await verifyDelivery(delivery.request, {
    issuer: 'https://tidings.test',
    audience: delivery.url,
    keys: testKeys,
  })
  types.push(verified.eventType)
  return { statuses, types, wrongVectors: await wrongVectors(), failures: await failures(store) }
}
