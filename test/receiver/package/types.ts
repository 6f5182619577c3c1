// Checked under every way in which TypeScript resolves modules.
import { createReceiver, type KnownEvent, koaReceiver, type TidingsEvent, verifyDelivery } from '@tidings/receiver'
import { sqlReplayStore } from '@tidings/receiver/stores'
import { signDelivery, testKeys } from '@tidings/receiver/testing'

const options = { issuer: 'https://tidings.test', audience: 'https://receiver.test/hooks', keys: testKeys }

export const receiver = createReceiver({ ...options, replayStore: sqlReplayStore(table => table) })
  .on('project_report_quarterly_submitted', ({ payload }) => payload.projectReport.submitterName.length)
  .on('token_expired', ({ payload }, { attempt, signal }) => [payload.accessTokenId, attempt + 1, signal.aborted])
  .otherwise(event => {
    switch (event.eventType) {
      case 'project_report_quarterly_approved':
        return event.payload.projectReport.approvedDate
      case 'unknown':
        return event.unknownType
    }
    // @ts-expect-error it has a handler of its own
    return event.eventType === 'token_expired'
  })

export const middleware = koaReceiver(receiver)

const begun = createReceiver(options).on('token_expired', () => {})
// @ts-expect-error there is a handler for it already
begun.on('token_expired', () => {})
// @ts-expect-error no such type
begun.on('token_expire', () => {})
// @ts-expect-error it has no handler for the rest
koaReceiver(begun)

export const main = async (): Promise<string> => {
  const { request } = await signDelivery({ eventType: 'token_expired', payload: { accessTokenId: 'x' } })
  const event: TidingsEvent | { eventType: 'ping' } = await verifyDelivery(request, options)
  return event.eventType === 'token_expired' ? (event satisfies KnownEvent<'token_expired'>).payload.accessTokenId : ''
}
