import assert from 'node:assert/strict'
import { test } from 'node:test'
import { bind } from '../../server/mango/bind.ts'
import { MangoError } from '../../server/mango/error.ts'
import { MAX_DEPTH, MAX_NODES, MAX_VALUES, parseSelector } from '../../server/mango/selector.ts'
import { things } from './things.ts'

const refusal = (selector: unknown): MangoError => {
  try {
    bind(parseSelector(selector), things)
  } catch (error) {
    assert.ok(error instanceof MangoError, String(error))
    assert.equal(error.code, 'BAD_USER_INPUT')
    return error
  }
  throw new Error(`not refused: ${JSON.stringify(selector)}`)
}

const accepted = (selector: unknown): void => void bind(parseSelector(selector), things)

/** A selector, where the message says the fault is, and what else it says. */
const refused: [string, unknown, string, RegExp][] = [
  ['a string is no selector', 'acme', 'selector', /a selector is an object/],
  ['a list is no selector', [{ name: 'a' }], 'selector', /array/],
  [
    'a misspelt operator is named, with what was meant',
    { name: { $gte2: 1 } },
    'selector.name.$gte2',
    /did you mean \$gte\? Operators: \$and \$or/,
  ],
  ['an operator of another database is refused', { $where: 'x' }, 'selector.$where', /is not an operator\. Operators:/],
  ['an operator without a field is refused', { $gt: 2 }, 'selector.$gt', /needs a field/],
  [
    'an operator without a field is refused inside $and',
    { $and: [{ $gt: 2 }] },
    'selector.$and[0].$gt',
    /needs a field/,
  ],
  ['$and takes a list', { $and: { name: 'a' } }, 'selector.$and', /takes a list, not object/],
  ['$and takes selectors', { $and: [5] }, 'selector.$and[0]', /each element is a selector/],
  ['$not takes an object', { name: { $not: 5 } }, 'selector.name.$not', /takes an object/],
  ['$in takes a list', { name: { $in: 'a' } }, 'selector.name.$in', /takes a list, not string/],
  ['$exists takes a boolean', { name: { $exists: 1 } }, 'selector.name.$exists', /true or false/],
  [
    '$type takes a type',
    { name: { $type: 'strin' } },
    'selector.name.$type',
    /did you mean string\? Types: null, boolean/,
  ],
  ['$type takes a string', { name: { $type: 2 } }, 'selector.name.$type', /Types: null, boolean/],
  ['$size takes no fraction', { tags: { $size: 1.5 } }, 'selector.tags.$size', /whole number/],
  ['$size takes nothing below 0', { tags: { $size: -1 } }, 'selector.tags.$size', /0 or more/],
  ['$mod takes two numbers', { count: { $mod: [2] } }, 'selector.count.$mod', /\[divisor, remainder\]/],
  ['$mod does not divide by 0', { count: { $mod: [0, 1] } }, 'selector.count.$mod', /other than 0/],
  [
    '$beginsWith takes a string',
    { name: { $beginsWith: true } },
    'selector.name.$beginsWith',
    /takes a string, not boolean/,
  ],
  ['$regex takes a string', { name: { $regex: 5 } }, 'selector.name.$regex', /pattern in a string/],
  ['$regex takes RE2 syntax', { name: { $regex: '(a' } }, 'selector.name.$regex', /RE2 syntax \(.*missing/],
  ['a lookahead is no RE2 syntax', { name: { $regex: '(?=a)' } }, 'selector.name.$regex', /RE2 syntax/],
  ['a back reference is no RE2 syntax', { name: { $regex: '(a)\\1' } }, 'selector.name.$regex', /RE2 syntax/],
  [
    'a pattern has a greatest length',
    { name: { $regex: 'a'.repeat(1_001) } },
    'selector.name.$regex',
    /1001 characters.*at most 1000/,
  ],
  ['a pattern has a greatest size', { name: { $regex: '(\\pL\\pN){900}' } }, 'selector.name.$regex', /too large/],
  ['$elemMatch takes an object', { parts: { $elemMatch: 5 } }, 'selector.parts.$elemMatch', /takes an object/],
  [
    'both spellings of an operator are one too many',
    { name: { $regex: 'a', _regex: 'b' } },
    'selector.name',
    /both \$regex and _regex/,
  ],
  ['both spellings of $and are one too many', { $and: [], _and: [] }, 'selector', /both \$and and _and/],
  [
    'a misspelt field is named, with what was meant',
    { nmae: 'a' },
    'selector.nmae',
    /things have no field "nmae"; did you mean name\? Fields: id, name, note/,
  ],
  [
    'a misspelt field of a related object is named',
    { 'maker.nam': 'a' },
    'selector.maker.nam',
    /makers have no field "nam"; did you mean name\? Fields: id, name, rank/,
  ],
  [
    'a misspelt field of a child is named',
    { parts: { $elemMatch: { nubmer: 1 } } },
    'selector.parts.$elemMatch.nubmer',
    /parts have no field "nubmer"; did you mean number\?/,
  ],
  [
    'a misspelt operator with an underscore is named',
    { name: { _regx: 'a' } },
    'selector.name._regx',
    /did you mean _regex\?/,
  ],
  [
    'a misspelt field deep inside is named with its place',
    { $or: [{ name: 'a' }, { $not: { maker: { rnk: 1 } } }] },
    'selector.$or[1].$not.maker.rnk',
    /did you mean rank\?/,
  ],
  ['__proto__ is no field', JSON.parse('{"__proto__": {"$gt": 1}}'), 'selector.__proto__.$gt', /no field "__proto__"/],
  ['constructor is no field', { constructor: 1 }, 'selector.constructor', /no field/],
  ['toString of a related object is no field', { 'maker.toString': 1 }, 'selector.maker.toString', /no field/],
  [
    'a path through a string leads nowhere',
    { 'name.first': 'a' },
    'selector.name.first',
    /into a string, which has no fields/,
  ],
  [
    'a path through a list needs $elemMatch',
    { 'parts.note': 'a' },
    'selector.parts.note',
    /into a list; say which elements, as in \{"\$elemMatch": \{"note"/,
  ],
  ['a path has no empty names', { 'maker..name': 'a' }, 'selector.maker..name', /empty name/],
  ['a name is not empty', { '': 'a' }, 'selector.', /empty name/],
  [
    'a time is written in ISO 8601',
    { createdAt: { $gt: 'yesterday' } },
    'selector.createdAt.$gt',
    /takes a time in ISO 8601.*not "yesterday"/,
  ],
  [
    'a time is no number',
    { createdAt: { $gt: 1_700_000_000_000 } },
    'selector.createdAt.$gt',
    /takes a time.*not number/,
  ],
  ['a time exists in the calendar', { createdAt: '2026-02-30T00:00:00Z' }, 'selector.createdAt', /takes a time/],
  ['a time in a list is a time', { endedAt: { $in: [null, 'x'] } }, 'selector.endedAt.$in', /takes a time/],
  ['a date is a date', { day: { $gt: '21.11.2026' } }, 'selector.day.$gt', /takes a date/],
  ['a date has no time', { day: '2026-11-21T00:00:00Z' }, 'selector.day', /takes a date/],
  [
    'a misspelt enum value is named',
    { status: 'opne' },
    'selector.status',
    /"opne" is not one of its values; did you mean open\? Values: open, done, late/,
  ],
  [
    'a misspelt enum value in a list is named',
    { status: { $in: ['open', 'dne'] } },
    'selector.status.$in',
    /did you mean done\?/,
  ],
  [
    'related objects are not compared as a whole',
    { maker: { $eq: { name: 'a' } } },
    'selector.maker.$eq',
    /cannot compare whole objects.*Fields: id, name/,
  ],
  [
    'lists of objects are not compared as a whole',
    { parts: { $eq: [{ number: 1 }] } },
    'selector.parts.$eq',
    /cannot compare whole objects/,
  ],
  [
    'lists of objects do not contain an object',
    { parts: { $in: [{ number: 1 }] } },
    'selector.parts.$in',
    /cannot compare whole objects/,
  ],
  ['what is not JSON is refused', { name: { $eq: Number.NaN } }, 'selector.name.$eq', /is not JSON/],
]

for (const [name, selector, path, message] of refused) {
  test(name, () => {
    const error = refusal(selector)
    assert.equal(error.path, path)
    assert.match(error.message, message)
    assert.ok(error.message.startsWith(`${path}: `))
  })
}

const nested = (levels: number): unknown => {
  let selector: unknown = { name: 'a' }
  for (let level = 1; level < levels; level++) selector = { $not: selector }
  return selector
}

test('a selector is nested as deep as the limit', () => accepted(nested(MAX_DEPTH)))

test('a selector nested deeper than the limit is refused by name', () => {
  assert.match(refusal(nested(MAX_DEPTH + 1)).message, /nested deeper than 32 levels/)
})

test('a selector nested a hundred thousand levels deep is refused as well', () => {
  assert.match(refusal(nested(100_000)).message, /nested deeper than 32 levels/)
})

test('a value nested deeper than the limit is refused by name', () => {
  const value = JSON.parse(`${'['.repeat(1_000)}${']'.repeat(1_000)}`)
  assert.match(refusal({ 'payload.a': { $eq: value } }).message, /nested deeper than 32 levels/)
})

test('a selector with more conditions than the limit is refused by name', () => {
  const conditions = (count: number) => ({ $or: Array.from({ length: count }, (_, count) => ({ count })) })
  accepted(conditions((MAX_NODES - 1) / 2 - 1))
  assert.match(refusal(conditions(MAX_NODES)).message, /more than 1000 conditions/)
})

test('a selector with more values than the limit is refused by name', () => {
  const values = (count: number) => ({ count: { $in: Array.from({ length: count }, (_, index) => index) } })
  accepted(values(MAX_VALUES - 2))
  assert.match(refusal(values(MAX_VALUES)).message, /more than 11000 values/)
})

test('times with other offsets are the same instants', () => {
  const node = bind(parseSelector({ createdAt: '2026-11-21T02:40:01.5+02:00' }), things)
  assert.ok(node.kind === 'field' && node.condition.operator === '$eq')
  assert.equal(node.condition.value, '2026-11-21T00:40:01.500+00:00')
})

test('paths in JSON are free', () => accepted({ 'payload.anything.at.all': 1, payload: { _type: 'string' } }))

test('objects without a prototype are objects', () => {
  accepted(Object.assign(Object.create(null), { name: Object.assign(Object.create(null), { $eq: 'a' }) }))
})
