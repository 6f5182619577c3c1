import assert from 'node:assert/strict'
import { describe, it } from 'node:test'
import fc from 'fast-check'
import { createNetworkGuard, parseNetworks } from '../../server/delivery/network-guard.ts'

const guard = createNetworkGuard({ allow: [] })

describe('without opened networks', () => {
  const allowed = [
    '8.8.8.8',
    '1.1.1.1',
    '172.15.255.255',
    '172.32.0.0',
    '100.63.255.255',
    '100.128.0.0',
    '11.0.0.0',
    '223.255.255.255',
    '2606:4700:4700::1111',
    '2001:4860:4860::8888',
    '2001:4860:4860::8888%eth0',
    '::ffff:8.8.8.8',
    '::ffff:808:808',
    '64:ff9b::8.8.8.8',
    '2002:808:808::1',
    // Teredo by server 8.8.4.4 for client 8.8.8.8, written with its bits turned over.
    '2001:0:808:404:0:0:f7f7:f7f7',
  ]
  for (const address of allowed) it(`${address} is sent to`, () => assert.equal(guard.isAllowed(address), true))

  const refused: [string, string[]][] = [
    ['this network', ['0.0.0.0', '0.1.2.3']],
    ['loopback', ['127.0.0.1', '127.255.255.255', '::1', '0:0:0:0:0:0:0:1']],
    ['private', ['10.0.0.1', '172.16.0.1', '172.31.255.255', '192.168.1.1', 'fc00::1', 'fd12:3456::1', 'fec0::1']],
    ['link-local, the cloud’s metadata included', ['169.254.169.254', 'fe80::1', 'fe80::1%eth0', 'fd00:ec2::254']],
    ['carrier-grade NAT', ['100.64.0.1', '100.127.255.255', '100.100.100.200']],
    [
      'for documentation and benchmarks',
      [
        '192.0.2.1',
        '198.51.100.1',
        '203.0.113.1',
        '198.18.0.1',
        '198.19.255.255',
        '2001:db8::1',
        '3fff::1',
        '2001:2::1',
      ],
    ],
    [
      'reserved',
      [
        '192.0.0.1',
        '192.88.99.1',
        '240.0.0.1',
        '255.255.255.255',
        '::',
        '4000::1',
        '100::1',
        '5f00::1',
        'e000::1',
        '1fff:ffff::1',
        '2001:10::1',
        '2001:20::1',
      ],
    ],
    ['multicast', ['224.0.0.1', '239.255.255.255', 'ff02::1']],
    ['IPv4-mapped', ['::ffff:127.0.0.1', '::ffff:7f00:1', '0:0:0:0:0:ffff:10.0.0.1', '::FFFF:169.254.169.254']],
    ['IPv4-compatible and IPv4-translated', ['::127.0.0.1', '::8.8.8.8', '::ffff:0:127.0.0.1', '::ffff:0:8.8.8.8']],
    [
      'NAT64',
      [
        '64:ff9b::127.0.0.1',
        '64:ff9b::a00:1',
        '64:ff9b::169.254.169.254',
        '64:ff9b:1::8.8.8.8',
        '64:ff9b:0:0:0:1:808:808',
      ],
    ],
    ['6to4', ['2002:7f00:1::', '2002:a00:1::1', '2002:a9fe:a9fe::', '2002:c0a8:101::1']],
    ['Teredo', ['2001:0:808:404:0:0:80ff:fffe', '2001:0:7f00:1:0:0:f7f7:f7f7']],
    ['octal, hexadecimal, decimal', ['0177.0.0.1', '0x7f.0.0.1', '2130706433', '0x7f000001', '127.1', '017700000001']],
    [
      'no address at all',
      ['', 'localhost', '8.8.8.8/32', '8.8.8.8 ', '256.1.1.1', '1.2.3.4.5', '[::1]', 'fe80::1%', ':::', '99999999999'],
    ],
  ]
  for (const [what, addresses] of refused) {
    for (const address of addresses) {
      it(`${what}: ${JSON.stringify(address)} is not sent to`, () => assert.equal(guard.isAllowed(address), false))
    }
  }

  it('no spelling of an inner IPv4 address is judged more mildly than the address itself', () => {
    const byte = fc.integer({ min: 0, max: 255 })
    fc.assert(
      fc.property(byte, byte, byte, byte, (a, b, c, d) => {
        const plain = guard.isAllowed(`${a}.${b}.${c}.${d}`)
        const high = ((a << 8) | b).toString(16)
        const low = ((c << 8) | d).toString(16)
        const wrapped = [`::ffff:${high}:${low}`, `64:ff9b::${high}:${low}`, `2002:${high}:${low}::1`]
        return wrapped.every(address => guard.isAllowed(address) === plain)
      }),
    )
  })

  it('nothing in IPv6 outside 2000::/3 is sent to, wrapped public IPv4 apart', () => {
    const part = fc.integer({ min: 0, max: 0xffff })
    fc.assert(
      fc.property(part, fc.array(part, { minLength: 7, maxLength: 7 }), (first, rest) => {
        fc.pre(first >> 13 !== 1 && first !== 0x64 && first !== 0)
        return !guard.isAllowed([first, ...rest].map(it => it.toString(16)).join(':'))
      }),
    )
  })
})

describe('an opened network', () => {
  const opened = createNetworkGuard({ allow: ['127.0.0.0/8', '10.1.0.0/16', 'fd00:1::/32', '::1'] })

  for (const address of [
    '127.0.0.1',
    '::ffff:127.0.0.1',
    '::ffff:7f00:1',
    '10.1.255.255',
    'fd00:1::5',
    '::1',
    '8.8.8.8',
  ]) {
    it(`lets ${address} be sent to`, () => assert.equal(opened.isAllowed(address), true))
  }
  for (const address of ['10.2.0.0', 'fd00:2::5', '::2', '192.168.0.1', '64:ff9b::7f00:1', '2002:7f00:1::']) {
    it(`leaves ${address} closed`, () => assert.equal(opened.isAllowed(address), false))
  }

  it('may be written as IPv4-mapped', () => {
    assert.equal(createNetworkGuard({ allow: ['::ffff:10.0.0.0/104'] }).isAllowed('10.9.9.9'), true)
  })
})

describe('names of networks', () => {
  it('are separated by commas or blanks, and a lone address is a network of one', () => {
    assert.deepEqual(parseNetworks(' 10.0.0.0/8,fd00::/8\n::1 127.0.0.1 '), [
      '10.0.0.0/8',
      'fd00::/8',
      '::1/128',
      '127.0.0.1/32',
    ])
  })

  it('may be none', () => assert.deepEqual(parseNetworks(''), []))

  for (const text of [
    'localhost',
    '10/8',
    '10.0.0.0/33',
    '::/129',
    '10.0.0.0/',
    '10.0.0.0/-1',
    '0x0a.0.0.0/8',
    '10.0.0.0/8/8',
  ]) {
    it(`${JSON.stringify(text)} is refused, and it is said what would be right`, () => {
      assert.throws(() => parseNetworks(text), /is not a network. Expected networks in CIDR notation/)
    })
  }

  it('with bits outside the mask are refused, and both things that could be meant are named', () => {
    assert.throws(() => parseNetworks('10.1.2.3/16'), /write 10\.1\.0\.0\/16, or 10\.1\.2\.3\/32 for it alone/)
  })

  it('are refused all at once', () => {
    assert.throws(() => parseNetworks('a,10.0.0.0/8,b'), /"a" is not a network; "b" is not a network/)
  })
})
