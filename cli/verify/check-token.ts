import { type Check, type Verification, verifyDeliveryToken } from '../../shared/delivery-token.ts'
import { parseIso } from '../../shared/time.ts'
import type { Session } from '../connection/session.ts'
import { usageError } from '../errors.ts'
import { cellText } from '../output/output.ts'
import { readSecretsFile } from '../resources/webhook-secrets.ts'
import { withAdvice } from './check-advice.ts'
import { checkStandard, type StandardCheck } from './check-standard.ts'
import { jwksUrl, keysFrom, kidOf } from './jwks.ts'
import { claimsOf, type ReceivedToken } from './token-source.ts'

/** The options that a token is checked against. */
export interface Expectations {
  issuer?: string | undefined
  audience?: string | undefined
  /** URL or file of the issuer's keys. */
  jwks?: string | undefined
  webhookId?: string[] | undefined
  at?: string | undefined
  strict?: boolean | undefined
  /** A file with the secrets of Standard Webhooks: then the token is checked only if issuer or keys are named. */
  secretFile?: string | undefined
  /** Whether a jti was handled before. */
  seen?: ((jti: string) => boolean) | undefined
}

export type AnyCheck = Check | StandardCheck
/** A token's verification, and the checks of Standard Webhooks if they were asked for. */
export type Checked = Omit<Verification, 'checks'> & { checks: AnyCheck[] }

/** Checks a delivery's token, or its signatures by Standard Webhooks, or both. Throws a CliError. */
export const checkDelivery = async (
  session: Session,
  given: ReceivedToken,
  options: Expectations,
): Promise<Checked> => {
  if (options.secretFile === undefined) return checkToken(session, given, options)
  if (!given.standard) {
    throw usageError('Standard Webhooks signs headers and body.', 'Give the whole request with --request FILE.')
  }
  const standard = checkStandard(given.standard, {
    body: given.isExact ? given.body : undefined,
    secrets: readSecretsFile(options.secretFile),
    atMs: options.at === undefined ? Date.now() : parseAt(options.at).getTime(),
  })
  const isTokenMeant = options.issuer !== undefined || options.jwks !== undefined
  const ofToken = isTokenMeant ? await checkToken(session, given, options) : NO_TOKEN
  const checks = [...ofToken.checks, ...standard]
  const claims = ofToken.claims ?? { jti: given.standard['webhook-id'] }
  return { ...ofToken, claims, checks, ok: checks.every(({ status }) => status !== 'failed') }
}

const NO_TOKEN: Verification = { ok: true, header: undefined, claims: undefined, checks: [] }

/** Checks a token, with advice on failed checks. Throws a CliError if the issuer is unknown. */
export const checkToken = async (
  session: Session,
  given: ReceivedToken,
  options: Expectations,
): Promise<Verification> => {
  const { token, body } = given
  const audience = options.audience ?? given.audience
  const at = options.at === undefined ? undefined : parseAt(options.at)
  const issuer = options.issuer ?? session.settings.url?.value.replace(/\/$/, '')
  const keySource = options.jwks ?? (issuer && jwksUrl(issuer))
  if (!keySource)
    throw usageError(
      'The issuer is unknown, so the keys are too.',
      `Name the sender’s address with --issuer, or a file or URL of its keys with --jwks.${issuerOf(token)}`,
    )
  const verification = await verifyDeliveryToken(token, {
    keys: await session.output.waiting(hostOf(keySource), keysFrom(keySource)(kidOf(token))),
    ...(issuer !== undefined && { issuer }),
    ...(audience !== undefined && { audience }),
    ...(body !== undefined && { body }),
    ...(options.webhookId !== undefined && { webhookIds: options.webhookId }),
    ...(at !== undefined && { at }),
    ...(options.seen !== undefined && { seen: options.seen }),
  })
  const checked = given.isExact ? verification : withoutDigest(verification)
  const issuerAssumed = options.issuer === undefined
  const checks = await withAdvice(checked, { token, keySource, issuer, issuerAssumed, audience, at })
  const judged = options.strict ? checks.map(strictly) : checks
  return { ...checked, ok: judged.every(({ status }) => status !== 'failed'), checks: judged }
}

/** With --strict, every check of a receiver must be possible. */
const strictly = (check: Check): Check =>
  check.status === 'skipped' && (check.name === 'issuer' || check.name === 'audience')
    ? {
        name: check.name,
        status: 'failed',
        expected: `the ${check.name} that you expect`,
        found: check.found ?? 'nothing',
        advice: `--strict needs every check: give --${check.name}.`,
      }
    : check

const hostOf = (keySource: string): string => URL.parse(keySource)?.host || keySource

/** Without the exact bytes of the body, its digest is unknown. */
const withoutDigest = (verification: Verification): Verification => {
  const checks = verification.checks.map(
    (check): Check =>
      check.name === 'body_digest'
        ? {
            name: check.name,
            status: 'skipped',
            advice: 'curl --trace-ascii does not show every byte of the body; --trace does.',
          }
        : check,
  )
  return { ...verification, checks, ok: checks.every(({ status }) => status !== 'failed') }
}

/** The issuer that the token claims, for a person to judge. */
const issuerOf = (token: string): string => {
  const { iss } = claimsOf(token)
  return typeof iss === 'string' ? ` The token says that it comes from ${cellText(iss)}.` : ''
}

const parseAt = (text: string): Date => {
  const ms = parseIso(text)
  if (ms === undefined)
    throw usageError(`${JSON.stringify(text)} is no ISO 8601 time.`, 'Such as: 2026-11-21T00:40:01Z')
  return new Date(ms)
}
