import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { describe, it } from 'node:test'
import { buildSchema, type GraphQLEnumType, type GraphQLObjectType } from 'graphql'
import { events } from '../../shared/events.ts'
import { RETRY_SCHEDULE_MS } from '../../shared/retry-schedule.ts'
import {
  deliveryStatuses,
  type EventType,
  errorCodes,
  eventTypes,
  failureReasons,
  LOST,
  mutations,
  permissions,
  refusalReasons,
  reportStatuses,
  webhookOrderings,
  webhookRecoveries,
  webhookSignings,
  webhookStatuses,
} from '../../shared/vocabulary.ts'
import { temporaryFolder, tidings } from '../cli/tidings.ts'

const read = (file: string) => readFileSync(new URL(`../../${file}`, import.meta.url), 'utf8')
const schemaText = read('server/graphql/schema.graphql')
const schema = buildSchema(schemaText)
const rules = read('docs/api.md')

/** What stands in backticks. */
const quoted = (text: string): string[] => [...text.matchAll(/`([^`]+)`/g)].map(([, word]) => word!)
/** The part of a text from where `start` begins up to an empty line. */
const paragraph = (text: string, start: string): string => {
  assert.ok(text.includes(start), `${JSON.stringify(start)} is no longer there`)
  return text.slice(text.indexOf(start)).split('\n\n')[0]!
}
/** The test that sees each type of event emitted, by its file and name. */
const emitted: Record<EventType, [file: string, name: string]> = {
  ping: ['graphql/signing', 'signs the ping of the registration, and shows the secret once'],
  project_report_quarterly_submitted: ['graphql/project-reports', 'emit an event of their organisation and project'],
  project_report_quarterly_approved: ['graphql/project-reports', 'emit an event of their organisation and project'],
  project_report_quarterly_overdue: ['scheduler/scheduler', 'emits overdue once, after the due date and not on it'],
  token_expired: ['scheduler/scheduler', 'emits token_expired once, at the time'],
  webhook_inactive: ['delivery/notices', 'tell of a webhook that has become inactive'],
  delivery_dropped: ['delivery/notices', 'tell who names it of a delivery that was dropped, with its payload'],
}
const sorted = (words: readonly string[]) => [...words].sort()

describe('a word that server and command line both speak', () => {
  it('has a payload, if it is an event type', () => {
    assert.deepEqual(Object.keys(events), [...eventTypes], 'Say it in shared/events.ts, in the same order')
  })

  for (const [type, [file, name]] of Object.entries(emitted)) {
    it(`is emitted where a test sees it, if it is the event type ${type}`, () => {
      assert.ok(read(`test/${file}.test.ts`).includes(name), `test/${file}.test.ts has no such test: ${name}`)
    })
  }

  for (const [name, words] of Object.entries({
    EventType: eventTypes,
    DeliveryStatus: deliveryStatuses,
    WebhookStatus: webhookStatuses,
    WebhookOrdering: webhookOrderings,
    WebhookRecovery: webhookRecoveries,
    WebhookSigning: webhookSignings,
    ReportStatus: reportStatuses,
    Permission: permissions,
  })) {
    it(`is a value of GraphQL’s ${name}, and there is no other`, () => {
      const values = (schema.getType(name) as GraphQLEnumType).getValues()
      assert.deepEqual(
        values.map(value => value.name),
        [...words],
        `Say it in ${name} of server/graphql/schema.graphql, in the same order`,
      )
    })
  }

  it('is a mutation of the schema, if it is one, and there is no other', () => {
    assert.deepEqual([...mutations], Object.keys(schema.getMutationType()!.getFields()))
  })

  it('is told in the schema, if it is the failure of an attempt', () => {
    const { description } = (schema.getType('Attempt') as GraphQLObjectType).getFields().failure!
    assert.deepEqual(quoted(description!), [...Object.keys(failureReasons), LOST])
  })

  it('is told in the schema, if it is the code of an error', () => {
    const told = [...schemaText.matchAll(/^- `([A-Z_]+)` /gm)].map(([, code]) => code!)
    assert.deepEqual(sorted(told), sorted(errorCodes))
  })

  it('is told on the page of the API’s rules, if it is the reason of a refusal', () => {
    const [, ...told] = quoted(paragraph(rules, 'A refusal is a 401 whose `reason` is one of'))
    assert.deepEqual(told, [...refusalReasons])
  })

  for (const [words, choices] of [
    ['webhooks create --events', eventTypes.filter(type => type !== 'ping')],
    ['events list --type', eventTypes],
    ['deliveries list --status', deliveryStatuses],
    ['webhooks list --status', webhookStatuses],
    ['reports list --status', reportStatuses],
    ['tokens create --permissions', permissions],
  ] as const) {
    it(`is completed after tidings ${words}`, async () => {
      const { stdout } = await tidings(['complete', '--', ...words.split(' '), ''], { home })
      const values = stdout.split('\n').map(line => line.split('\t')[0])
      assert.deepEqual(values.filter(Boolean), [...choices])
    })
  }
})

const home = temporaryFolder()

describe('the retry schedule', () => {
  const seconds = RETRY_SCHEDULE_MS.map(ms => ms / 1000)
  const last = seconds.at(-1)!

  it('is told to receivers as it is', () => {
    const told = /again after ([\d, ]+) and (\d+) s/.exec(read('docs/receivers/README.md'))
    assert.deepEqual(told?.slice(1).join(', ').split(', ').map(Number), seconds)
  })

  it('is told to integrators and in the README as it is', () => {
    const told = `after ${seconds.slice(0, 4).join(', ')} … ${last} s, ten times, then it is dropped`
    assert.ok(read('docs/integrators.md').includes(told), told)
    const inShort = `after ${seconds.slice(0, 3).join(', ')} … ${last} s`
    assert.ok(read('README.md').includes(inShort), inShort)
    assert.equal(seconds.length, 10)
  })
})
