export { examplePayload } from './example-payload.ts'
export { type ReplayStoreCase, replayStoreCases } from './replay-store-cases.ts'
export { type SignedDelivery, type TestDelivery, type TestSender, testSender } from './test-sender.ts'
export { signDelivery, startTestServer, type TestServer, testKey, testKeySet, testKeys } from './test-server.ts'
