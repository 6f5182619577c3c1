import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, before, describe, it } from 'node:test'
import { insertMany } from '../../server/database/connect.ts'
import { describeEachEngine } from '../support/databases.ts'
import { startTestServer, type TestServer } from '../support/server.ts'

describeEachEngine('counts', engine => {
  let server: TestServer
  let ids: string[]

  before(async () => {
    server = await startTestServer(engine, { env: { TIDINGS_ROLES: 'api' } })
    ids = []
    for (const name of ['Acme', 'Bolt']) {
      const { data } = await server.graphql('mutation($name: String!) { upsertOrganisation(name: $name) { id } }', {
        name,
      })
      ids.push(data.upsertOrganisation.id)
    }
    for (const [organisation, name] of [
      [0, 'Bridge'],
      [0, 'Tunnel'],
      [0, 'Bridge'],
      [1, 'Bridge'],
    ] as const) {
      await server.graphql(
        'mutation($o: UUID!, $name: String!) { upsertProject(organisationId: $o, name: $name) { id } }',
        { o: ids[organisation], name },
      )
    }
  })
  after(() => server.stop())

  const counts = async (args: string, as?: Parameters<TestServer['graphql']>[2]) => {
    const { data, errors } = await server.graphql(`{ counts(${args}) { key count } }`, {}, as)
    return errors ? errors[0]!.extensions : data.counts
  }

  it('tell how many rows there are, where they are counted by nothing', async () => {
    assert.deepEqual(await counts('resource: projects'), [{ key: {}, count: 4 }])
    assert.deepEqual(await counts('resource: projects, selector: {name: "none"}'), [{ key: {}, count: 0 }])
  })

  it('come by several fields, related ones too, the most frequent first', async () => {
    assert.deepEqual(await counts('resource: projects, by: ["organisation.name", "name"]'), [
      { key: { 'organisation.name': 'Acme', name: 'Bridge' }, count: 2 },
      { key: { 'organisation.name': 'Acme', name: 'Tunnel' }, count: 1 },
      { key: { 'organisation.name': 'Bolt', name: 'Bridge' }, count: 1 },
    ])
  })

  it('are of the rows that a selector matches, also where SQL cannot say it', async () => {
    const expected = [{ key: { name: 'Bridge' }, count: 3 }]
    assert.deepEqual(await counts('resource: projects, selector: {name: {_regex: "^B"}}, by: ["name"]'), expected)
    const lists = 'selector: {name: {_regex: "(?i)^b.{3}g"}}'
    assert.deepEqual(await counts(`resource: projects, ${lists}, by: ["name"]`), expected)
  })

  it('are of what the token sees', async () => {
    const limited = await server.token({ permissions: ['read'], organisationIds: [ids[1]!] })
    assert.deepEqual(await counts('resource: projects, by: ["organisation.name"]', limited), [
      { key: { 'organisation.name': 'Bolt' }, count: 1 },
    ])
  })

  it('are zero for a token that sees no webhook, of deliveries too', async () => {
    const limited = await server.token({ permissions: ['read'], organisationIds: [ids[1]!] })
    assert.deepEqual(await counts('resource: deliveries', limited), [{ key: {}, count: 0 }])
    assert.deepEqual(await counts('resource: deliveries, by: ["status"]', limited), [])
  })

  it('need the permission to read', async () => {
    const writer = await server.token({ permissions: ['webhooks'] })
    assert.equal((await counts('resource: projects', writer)).code, 'FORBIDDEN')
  })

  describe('by spans of time', () => {
    const ZONES = ['UTC', 'Europe/Berlin', 'Asia/Kolkata', 'America/St_Johns', 'Australia/Lord_Howe', 'Pacific/Apia']
    const UNITS = ['minute', 'hour', 'day', 'month'] as const
    const times: number[] = []

    before(async () => {
      // Around changes of the clocks, the ends of months, and in between.
      const around = [
        '2026-03-29T01:00Z',
        '2026-10-25T01:00Z',
        '2026-10-03T15:30Z',
        '2026-11-01T04:30Z',
        '2026-12-31T23:00Z',
      ]
      for (const each of around) {
        for (const minutes of [-1500, -61, -31, -1, 0, 1, 29, 30, 59, 60, 61, 600]) {
          times.push(Date.parse(each) + minutes * 60_000 + 1_234)
        }
      }
      const rows = times.map(time => ({
        id: randomUUID(),
        type: 'ping',
        payload: '{}',
        created_at: time,
        all_organisations: 1,
      }))
      await insertMany(server.database.knex, 'events', rows)
    })

    /** The bucket of a time as text, by the machine's calendar alone. */
    const spanOf = (ms: number, unit: (typeof UNITS)[number], timeZone: string): string => {
      const names = { minute: 5, hour: 4, day: 3, month: 2 }[unit]
      const fields = ['year', 'month', 'day', 'hour', 'minute'].slice(0, names)
      const options = {
        timeZone,
        hourCycle: 'h23',
        timeZoneName: unit === 'hour' || unit === 'minute' ? 'longOffset' : undefined,
      }
      const all = { ...options, ...Object.fromEntries(fields.map(field => [field, '2-digit'])), year: 'numeric' }
      const parts = new Intl.DateTimeFormat('en-US', all as Intl.DateTimeFormatOptions).formatToParts(ms)
      const part = (name: string) => parts.find(({ type }) => type === name)?.value
      return `${fields.map(part).join(' ')} ${(part('timeZoneName') ?? '').replace('GMT', '')}`.trim()
    }

    for (const zone of ZONES) {
      it(`are those of the calendar of ${zone}, in the order of time`, async () => {
        for (const unit of UNITS) {
          const by = `time:${unit}${zone === 'UTC' ? '' : `@${zone}`}`
          const found: { key: Record<string, string>; count: number }[] = await counts(
            `resource: events, selector: {type: "ping"}, by: ["${by}"]`,
          )
          const expected = Map.groupBy(
            times.toSorted((a, b) => a - b),
            time => spanOf(time, unit, zone),
          )
          const starts = found.map(({ key }) => key[by]!)
          assert.deepEqual(
            found.map(({ count }) => count),
            [...expected.values()].map(({ length }) => length),
            by,
          )
          // Each bucket begins in itself, and its text has the zone's offset.
          assert.deepEqual(
            starts.map(text => spanOf(Date.parse(text), unit, zone)),
            [...expected.keys()],
            by,
          )
          const [, offset] = /([+-]\d\d:\d\d)$/.exec(starts[0]!) ?? []
          assert.ok(offset, starts[0])
        }
      })
    }

    it('come beside other fields, and where SQL cannot select', async () => {
      const by = ['time:month', 'type']
      const inSql = await counts(`resource: events, by: ${JSON.stringify(by)}`)
      const selector = 'selector: {payload: {_type: "object"}, type: {_regex: "(?i)^p.{2}g$"}}'
      assert.deepEqual(await counts(`resource: events, ${selector}, by: ${JSON.stringify(by)}`), inSql)
      assert.deepEqual(inSql[0].key, { 'time:month': '2026-03-01T00:00:00.000+00:00', type: 'ping' })
    })

    it('are refused for what is no time, no unit and no zone', async () => {
      const refused = async (by: string) => {
        const { errors } = await server.graphql(`{ counts(resource: events, by: ["${by}"]) { count } }`)
        assert.equal(errors![0]!.extensions.code, 'BAD_USER_INPUT')
        return errors![0]!.message
      }
      assert.match(await refused('type:hour'), /"type" is no time/)
      assert.match(await refused('time:week'), /unknown unit "week".*minute, hour, day, month/)
      assert.match(await refused('time:day@Mars/Olympus'), /unknown zone "Mars\/Olympus".*Europe\/Berlin/)
    })
  })

  it('name the field that there is not, and what there is', async () => {
    const { data, errors } = await server.graphql('{ counts(resource: projects, by: ["nam"]) { count } }')
    assert.equal(data, null)
    assert.equal(errors![0]!.extensions.code, 'BAD_USER_INPUT')
    assert.match(errors![0]!.message, /by\[0\]: .*no field "nam"; did you mean name\?/)
    const whole = await server.graphql('{ counts(resource: projects, by: ["organisation"]) { count } }')
    assert.match(whole.errors![0]!.message, /by\[0\]: "organisation" is an object; name one of its fields/)
  })
})
