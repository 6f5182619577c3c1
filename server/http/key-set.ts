import type { Keyring } from '../keys/signing-keys.ts'
import { notReady } from './health.ts'
import { answerJson } from './json.ts'
import { PUBLIC } from './public.ts'
import type { RequestState } from './request-id.ts'
import { Router } from './router.ts'

/** Serves the public keys of delivery tokens as a JSON Web Key Set (RFC 7517). */
export const keySet = (keyring: () => Keyring | undefined) => {
  const router = new Router<RequestState>()
  router.get('/.well-known/jwks.json', ctx => {
    const keys = keyring()
    if (!keys) return notReady(ctx, 'the signing keys are not loaded yet')
    ctx.set(PUBLIC)
    answerJson(ctx, keys.jwks())
  })
  return router.routes()
}
