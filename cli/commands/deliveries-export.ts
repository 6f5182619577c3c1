import { Command } from '@commander-js/extra-typings'
import type { Jwk } from '../../shared/delivery-token.ts'
import { Session } from '../connection/session.ts'
import { CliError, exitCodes } from '../errors.ts'
import { dryRunOption, examples } from '../options.ts'
import { safeJson } from '../output/neutralise.ts'
import { cellText } from '../output/output.ts'
import { resolveId } from '../resources/ids.ts'
import { type Delivery, deliveryFields } from '../resources/timeline.ts'
import { type DeliveryEvidence, EVIDENCE_FORM } from '../verify/evidence.ts'
import { jwksUrl, remoteKeys } from '../verify/jwks.ts'

type Exported = Delivery & { event: { id: string; payload: unknown; time: string } | null }

export const exportCommand = () =>
  new Command('export')
    .summary('print the evidence of a delivery: request, answers, times, keys')
    .description(
      'Prints one JSON document: what was sent, each attempt with its answer and its time, and the public keys that ' +
        'signed the attempts. verify --evidence checks it without a connection. It has the payload, which may be ' +
        'personal.',
    )
    .argument('<id>', 'the delivery’s id, which its receiver sees as eventId and jti')
    .addOption(dryRunOption())
    .addHelpText(
      'after',
      examples(
        ['For the customer', 'tidings deliveries export ID > evidence.json'],
        ['Check it', 'tidings verify --evidence evidence.json'],
      ),
    )
    .action(async (given, _options, command) => {
      const session = new Session(command)
      const id = await resolveId(session, 'deliveries', given)
      const { deliveries } = await session.graphql<{ deliveries: Exported[] }>(
        `query ($query: MangoQuery) { deliveries(query: $query) { ${deliveryFields} event { time } } }`,
        { query: { selector: { id } } },
      )
      const [delivery] = deliveries
      if (!delivery?.event) {
        throw new CliError(
          exitCodes.notFound,
          'NOT_FOUND',
          `No delivery with id ${cellText(id)} is visible to this access token.`,
          'List the visible ones with: tidings deliveries list',
        )
      }
      session.output.data(`${safeJson(await evidenceOf(session, delivery, delivery.event), 2)}\n`)
    })

const evidenceOf = async (
  session: Session,
  delivery: Exported,
  event: NonNullable<Exported['event']>,
): Promise<DeliveryEvidence> => {
  const { id, webhookId, webhook, eventType, status, createdAt, finishedAt, attempts } = delivery
  const issuer = session.connection.url.origin
  const kids = [...new Set(attempts.flatMap(({ keyId }) => (keyId ? [keyId] : [])))]
  const { payload, time } = event
  return {
    form: EVIDENCE_FORM,
    issuer,
    exportedAt: new Date(session.output.nowMs).toISOString(),
    delivery: { id, webhookId, eventId: event.id, eventType, status, createdAt, finishedAt },
    request: {
      method: 'POST',
      url: webhook?.url ?? null,
      body: JSON.stringify({ webhookId, eventId: id, eventType, eventTime: time, payload }),
    },
    attempts,
    keys: kids.length === 0 ? [] : await keysOf(session, issuer, kids),
  }
}

/** The public keys that the issuer still publishes; an old one is left out. */
const keysOf = async (session: Session, issuer: string, kids: string[]): Promise<Jwk[]> => {
  const published = await remoteKeys(jwksUrl(issuer))(kids[0])
  const found = published.filter(({ kid }) => kid !== undefined && kids.includes(kid))
  if (found.length < kids.length) session.output.warning('A key that signed an attempt is no longer published.')
  return found
}
