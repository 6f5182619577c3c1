// A Cloudflare Worker: install the packed kit (docs/receivers/javascript.md), then with this in wrangler.jsonc:
// npx wrangler dev
//   "main": "worker.ts", "vars": { "ISSUER": "…", "AUDIENCE": "…" },
//   "durable_objects": { "bindings": [{ "name": "REPLAYS", "class_name": "ReplayStoreObject" }] },
//   "migrations": [{ "tag": "v1", "new_sqlite_classes": ["ReplayStoreObject"] }]
import { fetchReceiver } from '@tidings/receiver'
import { type DurableNamespace, durableObjectReplayStore } from '@tidings/receiver/stores'

export { ReplayStoreObject } from '@tidings/receiver/stores'

interface Environment {
  ISSUER: string
  AUDIENCE: string
  REPLAYS: DurableNamespace
}

let receive: ReturnType<typeof fetchReceiver> | undefined

export default {
  fetch(request: Request, { ISSUER, AUDIENCE, REPLAYS }: Environment, context: object): Promise<Response> {
    // One receiver for all requests, since it caches the issuer's keys.
    receive ??= fetchReceiver(
      { issuer: ISSUER, audience: AUDIENCE, replayStore: durableObjectReplayStore(REPLAYS) },
      async event => console.log(event.eventType, event.payload),
    )
    return receive(request, context)
  },
}
