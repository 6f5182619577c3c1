import assert from 'node:assert/strict'
import { createSocket } from 'node:dgram'
import { once } from 'node:events'
import { mkdtempSync, writeFileSync } from 'node:fs'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, it, type TestContext } from 'node:test'
import { createLookup, type Lookup } from '../../server/delivery/names.ts'

const TYPE = { A: 1, CNAME: 5, AAAA: 28 }
const NXDOMAIN = 3
type Asked = { name: string; type: number }

/** A name server; `answer` returns the records of a name, `undefined` for none such, and `never` for no answer. */
const startNameServer = async (t: TestContext, answer: (asked: Asked) => Buffer[] | undefined | 'never') => {
  const server = createSocket('udp4')
  server.on('message', (query, { port, address }) => {
    const labels: string[] = []
    let at = 12
    for (; query[at]; at += query[at]! + 1) labels.push(query.toString('latin1', at + 1, at + 1 + query[at]!))
    const end = at + 5
    const found = answer({ name: labels.join('.'), type: query.readUInt16BE(at + 1) })
    if (found === 'never') return
    const head = Buffer.from(query.subarray(0, 12))
    head.writeUInt16BE(found ? 0x8180 : 0x8180 | NXDOMAIN, 2)
    head.writeUInt16BE(found?.length ?? 0, 6)
    head.writeUInt32BE(0, 8)
    const records = (found ?? []).map(data => {
      const record = Buffer.from([
        0xc0,
        12,
        0,
        data.length === 4 ? TYPE.A : data.length === 16 ? TYPE.AAAA : TYPE.CNAME,
        0,
        1,
        0,
        0,
        0,
        60,
        0,
        data.length,
      ])
      return Buffer.concat([record, data])
    })
    server.send(Buffer.concat([head, query.subarray(12, end), ...records]), port, address)
  })
  server.bind(0, '127.0.0.1')
  await once(server, 'listening')
  t.after(() => server.close())
  return `127.0.0.1:${(server.address() as AddressInfo).port}`
}

const V4 = Buffer.from([192, 0, 2, 7])
const V6 = Buffer.from('20010db8000000000000000000000007', 'hex')
/** A CNAME record to the name `gone`. */
const GONE = Buffer.from('\u0004gone\0', 'latin1')

const resolve = (lookup: Lookup, host: string): Promise<string[]> =>
  new Promise((resolve, reject) => {
    const told = (error: Error | null, found: { address: string }[]) =>
      error ? reject(error) : resolve(found.map(({ address }) => address))
    lookup(host, { all: true }, told)
  })

/** The system's lookup, as a list of what it was asked and its answers yet to be given. */
const startSystem = () => {
  const asked: { host: string; answer: Parameters<Lookup>[2] }[] = []
  const system: Lookup = (host, _options, answer) => void asked.push({ host, answer })
  return { asked, system }
}

describe('the name of an endpoint', () => {
  it('is found while the servers of any number of others do not answer', async t => {
    const never = ({ name }: Asked) => (name.startsWith('never') ? 'never' : [V4])
    const server = await startNameServer(t, asked => (asked.type === TYPE.A ? never(asked) : never(asked) && []))
    const { system, asked } = startSystem()
    const lookup = createLookup({ servers: [server], system })
    for (let n = 0; n < 50; n++) lookup(`never${n}.example`, { all: true }, () => {})
    assert.deepEqual(await resolve(lookup, 'there.example'), ['192.0.2.7'])
    assert.deepEqual(asked, [])
  })

  it('may have addresses of both families, or of one', async t => {
    const server = await startNameServer(t, ({ name, type }) =>
      [V4, V6].filter(
        ({ length }) => length === (type === TYPE.A ? 4 : 16) && name.includes(`v${length === 4 ? 4 : 6}`),
      ),
    )
    const { system } = startSystem()
    const lookup = createLookup({ servers: [server], system })
    assert.deepEqual(await resolve(lookup, 'v4v6.example'), ['192.0.2.7', '2001:db8::7'])
    assert.deepEqual(await resolve(lookup, 'v4.example'), ['192.0.2.7'])
    assert.deepEqual(await resolve(lookup, 'v6.example'), ['2001:db8::7'])
  })

  it('is found though its server says nothing of one family', async t => {
    const server = await startNameServer(t, ({ type }) => (type === TYPE.A ? [V4] : 'never'))
    const { system } = startSystem()
    assert.deepEqual(await resolve(createLookup({ servers: [server], system }), 'half.example'), ['192.0.2.7'])
  })

  it('is asked of the system if it has no dot or is in the hosts file, whatever name servers say', async t => {
    const server = await startNameServer(t, () => 'never')
    const hostsFile = join(mkdtempSync(join(tmpdir(), 'tidings-names-')), 'hosts')
    writeFileSync(hostsFile, '127.0.0.1 localhost\n10.0.0.9\tone.example Two.Example # three.example\n')
    const { system, asked } = startSystem()
    const lookup = createLookup({ servers: [server], system, hostsFile })
    for (const host of ['localhost', 'one.example', 'two.example', 'three.example'])
      lookup(host, { all: true }, () => {})
    assert.deepEqual(
      asked.map(({ host }) => host),
      ['localhost', 'one.example', 'two.example'],
    )
  })

  const searching = (domains: string) => {
    const resolvConf = join(mkdtempSync(join(tmpdir(), 'tidings-names-')), 'resolv.conf')
    writeFileSync(resolvConf, `# search old.example\ndomain old.example\nsearch ${domains}\noptions ndots:5\n`)
    return resolvConf
  }

  it('is completed by a search domain, whatever other names make their servers wait for', async t => {
    const server = await startNameServer(t, ({ name, type }) => {
      if (name.includes('evil')) return 'never'
      return name === 'hooks.payments.svc.cluster.local' && type === TYPE.A ? [V4] : undefined
    })
    const { system, asked } = startSystem()
    const resolvConf = searching('default.svc.cluster.local svc.cluster.local. cluster.local')
    const lookup = createLookup({ servers: [server], system, resolvConf })
    for (let n = 0; n < 50; n++) lookup(`never${n}.evil.example`, { all: true }, () => {})
    assert.deepEqual(await resolve(lookup, 'hooks.payments'), ['192.0.2.7'])
    await assert.rejects(resolve(lookup, 'hooks.unknown'), {
      code: 'ENOTFOUND',
      message: /not found.*: hooks\.unknown$/,
    })
    await assert.rejects(resolve(lookup, 'hooks.payments.'), { code: 'ENOTFOUND' })
    assert.deepEqual(asked, [])
  })

  it('that is there without an address is told as such', async t => {
    const server = await startNameServer(t, () => [GONE])
    const { system } = startSystem()
    const lookup = createLookup({ servers: [server], system, resolvConf: searching('') })
    await assert.rejects(resolve(lookup, 'alias.example'), { code: 'ENOTFOUND', message: /The name was not found/ })
  })

  it('is not asked of the system if a server says nothing of one family, and does not know the other', async t => {
    const server = await startNameServer(t, ({ type }) => (type === TYPE.A ? [] : 'never'))
    const { system, asked } = startSystem()
    const lookup = createLookup({ servers: [server], system, patience: { timeout: 300, tries: 1 } })
    await assert.rejects(resolve(lookup, 'half.example'), { code: 'ETIMEOUT' })
    assert.deepEqual(asked, [])
  })
})
