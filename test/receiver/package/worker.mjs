import { durableObjectReplayStore } from '@tidings/receiver/stores'
import { probe } from './probe.mjs'

export { ReplayStoreObject } from '@tidings/receiver/stores'

export default {
  fetch: async (_request, { REPLAYS }) => Response.json(await probe(durableObjectReplayStore(REPLAYS))),
}
