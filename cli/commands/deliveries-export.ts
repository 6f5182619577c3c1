import { Command } from '@commander-js/extra-typings'
import type { DeliveryEvidence } from '../../shared/evidence.ts'
import { Session } from '../connection/session.ts'
import { dryRunOption, examples } from '../options.ts'
import { safeJson } from '../output/neutralise.ts'
import { resolveId } from '../resources/ids.ts'

export const exportCommand = () =>
  new Command('export')
    .summary('print the evidence of a delivery: request, answers, times, keys')
    .description(
      'Prints one JSON document: what was sent, each attempt with its URL, its answer and its time, and the public ' +
        'keys that signed them. The server signs the document, and verify --evidence checks it without a connection, ' +
        'also years later if the issuer’s keys of today are kept beside it. It has the payload, which may be personal.',
    )
    .argument('<id>', 'the delivery’s id, which its receiver sees as eventId and jti')
    .addOption(dryRunOption())
    .addHelpText(
      'after',
      examples(
        ['For the customer', 'tidings deliveries export ID > evidence.json'],
        ['The issuer’s keys, to be kept beside it', 'curl -O https://tidings.example.com/.well-known/jwks.json'],
        ['Check it', 'tidings verify --evidence evidence.json --jwks jwks.json'],
      ),
    )
    .action(async (given, _options, command) => {
      const session = new Session(command)
      const deliveryId = await resolveId(session, 'deliveries', given)
      const { evidence } = await session.graphql<{ evidence: DeliveryEvidence }>(
        'query ($deliveryId: UUID!) { evidence: deliveryEvidence(deliveryId: $deliveryId) }',
        { deliveryId },
      )
      session.output.data(`${safeJson(evidence, 2)}\n`)
    })
