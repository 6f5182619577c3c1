import { Command } from '@commander-js/extra-typings'
import { parseIso, toIso } from '../../shared/time.ts'
import { type DeliveryStatus, deliveryStatuses } from '../../shared/vocabulary.ts'
import { Session } from '../connection/session.ts'
import { dryRunOption, examples } from '../options.ts'
import type { Output } from '../output/output.ts'
import { count } from '../output/time.ts'
import { resolveId } from '../resources/ids.ts'
import { type Answered, percentiles, type Span, type Statistics, spansOf, unitFor } from '../resources/statistics.ts'
import { describeStatistics } from '../resources/statistics-chart.ts'
import { conditionsOf, sinceOption, untilOption, windowOf } from '../window.ts'

const DAY_MS = 86_400_000
/** A sample of the answers: the first deliveries of equal parts of the time. */
const PARTS = 24
const OF_EACH_PART = 20

export const statsCommand = () =>
  new Command('stats')
    .summary('see deliveries, failures and times of answers over time')
    .description(
      'Draws how many deliveries there were over time, how many failed, and how long answers took (p50 and p95 of a ' +
        'sample), of one webhook or of all that the access token sees. Without --since, of 24 hours. Without a ' +
        'terminal it prints the numbers as JSON.',
    )
    .argument('[webhook]', 'only of this webhook')
    .addOption(sinceOption('only those created'))
    .addOption(untilOption('only those created'))
    .addOption(dryRunOption())
    .addHelpText(
      'after',
      examples(
        ['How was the last day?', 'tidings stats'],
        ['Since when does this endpoint fail?', 'tidings stats ID --since 1w'],
        ['For a spreadsheet', 'tidings stats ID --since 7d --output csv > stats.csv'],
      ),
    )
    .action(async (named, options, command) => {
      const session = new Session(command)
      const { output } = session
      const webhookId = await resolveId(session, 'webhooks', named)
      const { since, until } = windowOf(output, options)
      const toMs = until === undefined ? output.nowMs : parseIso(until)!
      const fromMs = since === undefined ? toMs - DAY_MS : parseIso(since)!
      print(output, await statistics(session, { webhookId, fromMs, toMs }))
    })

/** Asks for the counts and the sample in one request. */
export const statistics = async (
  session: Session,
  { webhookId, fromMs, toMs }: { webhookId: string | undefined; fromMs: number; toMs: number },
): Promise<Statistics> => {
  const unit = unitFor(toMs - fromMs)
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone
  const bucket = `createdAt:${unit}@${zone}`
  const of = webhookId === undefined ? [] : [{ webhookId }]
  const within = (from: number, to: number) => ({
    $and: [...of, ...conditionsOf({ since: toIso(from), until: toIso(to) }, 'createdAt')],
  })
  const edges = Array.from({ length: PARTS + 1 }, (_, index) => Math.round(fromMs + ((toMs - fromMs) * index) / PARTS))
  const parts = edges.slice(1).map((to, index) => ({
    name: `p${index}`,
    query: { selector: within(edges[index]!, to), sort: [{ createdAt: 'asc' }], limit: OF_EACH_PART },
  }))
  const declared = parts.map(({ name }) => `$${name}: MangoQuery`).join(', ')
  const sampled = parts.map(({ name }) => `${name}: deliveries(query: $${name}) { ...answer }`).join(' ')
  const document = `query ($selector: MangoSelector, $by: [String!], ${declared}) {
      counts(resource: deliveries, selector: $selector, by: $by) { key count } ${sampled} }
    fragment answer on Delivery { createdAt attempts(query: { sort: [{ number: "desc" }], limit: 1 }) {
      durationMs statusCode } }`
  const variables = {
    // That every status is named makes it a range of an index for each; MySQL would read all there is of one index.
    selector: { $and: [...within(fromMs, toMs).$and, { status: { $in: [...deliveryStatuses] } }] },
    by: [bucket, 'status'],
    ...Object.fromEntries(parts.map(({ name, query }) => [name, query])),
  }
  const { counts, ...samples } = await session.graphql<
    { counts: { key: Record<string, string>; count: number }[] } & Record<string, Answered[]>
  >(document, variables)
  const counted = counts.map(({ key, count }) => ({
    startMs: parseIso(key[bucket]!)!,
    status: key.status as DeliveryStatus,
    count,
  }))
  const answers = Object.values(samples).flat()
  const spans = spansOf({ counted, answers, unit, fromMs, toMs })
  const sum = (of: (span: Span) => number) => spans.reduce((total, span) => total + of(span), 0)
  return {
    webhookId: webhookId ?? null,
    since: toIso(fromMs),
    until: toIso(toMs),
    unit,
    zone,
    deliveries: sum(({ deliveries }) => deliveries),
    failed: sum(({ failed }) => failed),
    ...percentiles(answers),
    sampled: answers.length,
    spans,
  }
}

const print = (output: Output, statistics: Statistics): void => {
  if (output.form === 'csv' || output.form === 'ndjson' || output.form === 'id') {
    output.list(statistics.spans, { columns: [], empty: 'No deliveries.' })
    return
  }
  output.one(statistics, colours => describeStatistics(statistics, colours))
  if (output.forPeople && statistics.sampled > 0) {
    output.message(`Times of answers are of a sample of ${count(statistics.sampled, 'delivery', 'deliveries')}.`)
  }
}
