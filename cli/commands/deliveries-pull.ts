import { Command, InvalidArgumentError } from '@commander-js/extra-typings'
import type { TakenDelivery } from '../../receiver/pulling.ts'
import { graphql } from '../connection/client.ts'
import { Session } from '../connection/session.ts'
import { CliError, exitCodes } from '../errors.ts'
import { dryRunOption, examples, readText, wholeNumber } from '../options.ts'
import { cellText, type View } from '../output/output.ts'
import { relativeIso } from '../output/time.ts'
import { idColumn } from '../resources/cells.ts'
import { idToChange, resolveId } from '../resources/ids.ts'

const TAKE = `mutation ($webhookId: UUID!, $limit: Int, $waitSeconds: Int) {
  taken: takeDeliveries(webhookId: $webhookId, limit: $limit, waitSeconds: $waitSeconds) {
    deliveryId attempt headers body leaseUntil
  }
}`
const ANSWER = `mutation ($answers: [DeliveryAnswer!]!) {
  answered: answerDeliveries(answers: $answers) { deliveryId attempt counted reason delivery { status } }
}`

/** Longer than the longest wait. */
const TIMEOUT_MS = 45_000

export const takeCommand = () =>
  new Command('take')
    .summary('take deliveries of a webhook with the transport pull')
    .description(
      'Takes deliveries that are due, each with the headers and the body that an endpoint would have received. ' +
        'They are leased for 30 s: answer each before, or its attempt counts as a timeout and it comes again.',
    )
    .argument('<webhook>', 'the webhook’s id')
    .option('--limit <number>', 'at most this many, up to 100', wholeNumber, 1)
    .option('--wait <seconds>', 'wait for some, up to 30 s', wholeNumber, 0)
    .addOption(dryRunOption())
    .addHelpText(
      'after',
      examples(
        ['The next one, as soon as there is one', 'tidings deliveries take ID --wait 30'],
        ['Ten at once, one line of JSON each', 'tidings deliveries take ID --limit 10 --output ndjson'],
      ),
    )
    .action(async (given, { limit, wait }, command) => {
      const session = new Session(command)
      const variables = { webhookId: await resolveId(session, 'webhooks', given), limit, waitSeconds: wait }
      const asked = session.dryRun
        ? session.graphql<{ taken: TakenDelivery[] }>(TAKE, variables)
        : graphql<{ taken: TakenDelivery[] }>(session.connection, TAKE, variables, { timeoutMs: TIMEOUT_MS })
      const { taken } = await asked
      session.output.list(
        taken.map((one): Listed => ({ id: one.deliveryId, ...one })),
        view(session.output.nowMs),
      )
    })

type Listed = TakenDelivery & { id: string }

const view = (nowMs: number): View<Listed> => ({
  columns: [
    idColumn,
    { title: 'ATTEMPT', cell: ({ attempt }) => String(attempt) },
    { title: 'EVENT', cell: ({ body }) => cellText(JSON.parse(body).eventType) },
    { title: 'LEASE ENDS', cell: ({ leaseUntil }) => relativeIso(leaseUntil, nowMs) },
  ],
  empty: 'Nothing is due. --wait 30 waits for something.',
})

interface Answered {
  counted: boolean
  reason: string | null
  delivery: { status: string } | null
}

export const answerCommand = () =>
  new Command('answer')
    .summary('answer a delivery that was taken')
    .description(
      'Answers a delivery that was taken. The status means what it means from an endpoint. ' +
        'Exit code 1 if the answer does not count, such as after another one.',
    )
    .argument('<id>', 'the delivery’s id')
    .requiredOption('--attempt <number>', 'the attempt, as it was taken', wholeNumber)
    .option('--status <code>', 'the status, as an endpoint would answer', statusCode, 200)
    .option('--retry-after <when>', 'with --status 429: seconds, or a date')
    .option('--body <text>', 'the answer’s body; @path reads a file, - standard input')
    .addOption(dryRunOption())
    .addHelpText(
      'after',
      examples(
        ['It was handled', 'tidings deliveries answer ID --attempt 1'],
        ['Try it again', 'tidings deliveries answer ID --attempt 1 --status 500 --body "the disk is full"'],
        [
          'Leave the webhook alone for a minute',
          'tidings deliveries answer ID --attempt 1 --status 429 --retry-after 60',
        ],
      ),
    )
    .action(async (given, { attempt, status, retryAfter, body }, command) => {
      const session = new Session(command)
      const answer = {
        deliveryId: await idToChange(session, 'deliveries', given),
        attempt,
        status,
        ...(retryAfter !== undefined && { headers: { 'retry-after': retryAfter } }),
        ...(body !== undefined && { body: readText(body, '--body') }),
      }
      const { answered } = await session.graphql<{ answered: Answered[] }>(ANSWER, { answers: [answer] })
      const [made] = answered
      if (!made!.counted) {
        const again = 'See its attempts with: tidings deliveries show ID'
        throw new CliError(exitCodes.failed, 'NOT_COUNTED', cellText(made!.reason ?? ''), again)
      }
      session.output.one(made!, () => `The delivery is ${cellText(made!.delivery?.status ?? 'answered')}.`)
    })

function statusCode(text: string): number {
  const status = wholeNumber(text)
  if (status >= 100 && status <= 599) return status
  throw new InvalidArgumentError('It must be from 100 to 599.')
}
