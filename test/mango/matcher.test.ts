import assert from 'node:assert/strict'
import { test } from 'node:test'
import { matches } from '../../server/mango/matcher.ts'
import type { Json } from '../../server/mango/selector.ts'
import { cpuMsOf } from '../support/effort.ts'

// What CouchDB's own matcher tests (mango_selector.erl, src/mango/test) say of each operator: a condition on `x`, and
// values of `x` that satisfy it, and that do not. Where `x` is there, `$not` turns each answer around.
const conditions: [unknown, { yes: Json[]; no: Json[] }][] = [
  [{ $lt: 5 }, { yes: [4, null, true, -1.5], no: [5, 6, '4', [1], { a: 1 }] }],
  [{ $lt: 'hello' }, { yes: ['held', '', 7, null], no: ['hello', 'help', ['a']] }],
  [{ $lt: [1, 2, 3] }, { yes: [[1, 2, 2], [1, 2], [], 'z'], no: [[1, 2, 3], [1, 2, 4], [1, 3], {}] }],
  [{ $lt: null }, { yes: [], no: [null, false, 0, '', [], {}] }],
  [{ $lte: 5 }, { yes: [4, 5, false], no: [6, ''] }],
  [{ $lte: 'hello' }, { yes: ['held', 'hello'], no: ['help'] }],
  [
    { $lte: [1, 2, 3] },
    {
      yes: [
        [1, 2, 2],
        [1, 2],
        [1, 2, 3],
      ],
      no: [
        [1, 2, 4],
        [1, 3],
      ],
    },
  ],
  [{ $lte: null }, { yes: [null], no: [false, 0] }],
  [{ $gt: 5 }, { yes: [6, '', [], {}], no: [4, 5, null, true] }],
  [{ $gt: 'hello' }, { yes: ['help', []], no: ['held', 'hello', 9] }],
  [
    { $gt: [1, 2, 3] },
    {
      yes: [[1, 2, 4], [1, 3], {}],
      no: [
        [1, 2, 2],
        [1, 2],
        [1, 2, 3],
      ],
    },
  ],
  [{ $gt: null }, { yes: [false, 0, '', [], {}], no: [null] }],
  [{ $gte: 5 }, { yes: [5, 6], no: [4] }],
  [{ $gte: 'hello' }, { yes: ['hello', 'help'], no: ['held'] }],
  [
    { $gte: [1, 2, 3] },
    {
      yes: [
        [1, 2, 3],
        [1, 2, 4],
        [1, 3],
      ],
      no: [
        [1, 2, 2],
        [1, 2],
      ],
    },
  ],
  [{ $gte: null }, { yes: [null, false, 0, '', [], {}], no: [] }],
  [{ $lt: true }, { yes: [false, null], no: [true, 0] }],
  [{ $lt: { a: 2 } }, { yes: [{}, { a: 1 }, { a: 1, b: 1 }, []], no: [{ a: 2 }, { a: 2, b: 0 }, { b: 0 }] }],
  [{ $eq: 5 }, { yes: [5], no: [6, '5', [5]] }],
  [5, { yes: [5], no: [6, '5', [5]] }],
  [{ $eq: 'hello' }, { yes: ['hello'], no: ['help', 'Hello', 'hello '] }],
  ['hello', { yes: ['hello'], no: ['help'] }],
  [null, { yes: [null], no: [false, 0, ''] }],
  [true, { yes: [true], no: [false, 1, 'true'] }],
  [[1, 2], { yes: [[1, 2]], no: [[2, 1], [1, 2, 3], 1] }],
  [
    { $eq: [1, [2, 3, 4], 5] },
    {
      yes: [[1, [2, 3, 4], 5]],
      no: [
        [1, [2, 3, 4]],
        [1, [2, 3, 4], 5, 6],
        [1, [2, 7, 4], 5],
      ],
    },
  ],
  [
    { $eq: { a: { b: { c: 7 } } } },
    { yes: [{ a: { b: { c: 7 } } }], no: [{ a: { b: { c: 8 } } }, { a: { b: { d: 7 } } }, { a: { d: { c: 7 } } }] },
  ],
  [{ $eq: { $gt: 5 } }, { yes: [{ $gt: 5 }], no: [6] }],
  [{ $ne: 5 }, { yes: [6, null, '5'], no: [5] }],
  [{ $ne: 'hello' }, { yes: ['help'], no: ['hello'] }],
  [{ $ne: [1, [2, 3, 4], 5] }, { yes: [[1, [2, 3, 4]]], no: [[1, [2, 3, 4], 5]] }],
  [{ $in: [] }, { yes: [], no: [0, true, 'foo', [], null] }],
  [
    { $in: [42, false, 'bar', [['nested'], 'list'], { b: 2 }] },
    {
      yes: [42, false, 'bar', { b: 2 }, [0, 42], [0, false], [0, 'bar'], [0, { b: 2 }], [0, [['nested'], 'list']]],
      no: [43, true, 'bars', { b: 2, c: 3 }, [['nested'], 'list'], []],
    },
  ],
  [{ $nin: [] }, { yes: [0, true, 'foo', []], no: [] }],
  [
    { $nin: [42, false, 'bar', [['nested'], 'list'], { b: 2 }] },
    {
      yes: [43, true, 'bars', { b: 2, c: 3 }, [['nested'], 'list'], []],
      no: [42, false, 'bar', { b: 2 }, [0, 42], [0, false], [0, 'bar'], [0, { b: 2 }], [0, [['nested'], 'list']]],
    },
  ],
  [{ $all: [] }, { yes: [], no: [[], [42], {}, 'foo'] }],
  [
    { $all: [1, 2, 3, 4] },
    {
      yes: [
        [3, 2, 4, 1],
        [0, 4, 3, 5, 2, 1, 6],
      ],
      no: [[3, 2, 4], []],
    },
  ],
  [
    { $all: [[1, 2, 3, 4]] },
    {
      yes: [
        [1, 2, 3, 4],
        [5, [1, 2, 3, 4], 6],
      ],
      no: [[4, 3, 2, 1], [1, 3, 4], [], [5, [1, 3, 4], 6], [5, [1, 3, 2, 4], 6]],
    },
  ],
  [{ $all: ['hello'] }, { yes: [['hello'], [0, 'hello', 1]], no: ['hello', []] }],
  [{ $all: [{ a: 1 }] }, { yes: [[{ a: 1 }]], no: [[{ a: 1, b: 2 }]] }],
  [{ $type: 'null' }, { yes: [null], no: [false, {}] }],
  [{ $type: 'boolean' }, { yes: [true, false], no: [0] }],
  [{ $type: 'number' }, { yes: [42, 3.14, 0], no: [true, [1], '1'] }],
  [{ $type: 'string' }, { yes: ['', 'hello'], no: [[]] }],
  [{ $type: 'array' }, { yes: [[], [1, 2]], no: [{}, 'hi'] }],
  [{ $type: 'object' }, { yes: [{}, { a: 1 }], no: [[{ a: 1 }], null] }],
  [{ $regex: '^[0-9a-f]+$' }, { yes: ['3a0df5e'], no: ['', '3a0gf5e', 42] }],
  [{ $regex: 'a.c' }, { yes: ['abc', 'xxabcxx'], no: ['ac', 'ABC'] }],
  [{ $regex: '(?i)a.c' }, { yes: ['abc', 'xxAXCxx'], no: ['ac'] }],
  [{ $beginsWith: 'foo' }, { yes: ['foo', 'food', 'fool me once'], no: ['more food', 'fo', 42, 'Foo'] }],
  [{ $beginsWith: '' }, { yes: ['', 'a'], no: [1, null] }],
  [{ $mod: [28, 1] }, { yes: [1, 29, 57], no: [58, '57', 1.5] }],
  [{ $mod: [4, -1] }, { yes: [-1, -5], no: [3, -3] }],
  [{ $size: 3 }, { yes: [[0, 0, 0]], no: [3, 'fun', [0, 0], [0, 0, 0, 0]] }],
  [{ $size: 0 }, { yes: [[]], no: [0, {}, ''] }],
  [{ $allMatch: { $eq: 0 } }, { yes: [[0], [0, 0]], no: [[], [1], [0, 1], 0] }],
  [{ $elemMatch: { $ne: 0 } }, { yes: [[1], [0, 1]], no: [[], [0]] }],
  [{ $elemMatch: { $eq: 0 } }, { yes: [[0], [0, 1]], no: [[], [1], 0] }],
  [{ $elemMatch: { $gte: 80, $lt: 85 } }, { yes: [[1, 82]], no: [[79, 85], [90]] }],
  [
    { $elemMatch: { foo: { $gte: 1 }, bam: true } },
    { yes: [[{ foo: 2, bam: true }]], no: [[{ foo: 1, bar: 2 }], [{ foo: 1 }, { bam: true }]] },
  ],
  [
    { $allMatch: { foo: { $mod: [2, 1] }, bar: { $mod: [2, 0] } } },
    {
      yes: [
        [
          { foo: 1, bar: 2 },
          { foo: 3, bar: 4 },
        ],
      ],
      no: [
        [
          { foo: 1, bar: 2 },
          { foo: 4, bar: 4 },
        ],
      ],
    },
  ],
  [{ $elemMatch: { $elemMatch: { $eq: 1 } } }, { yes: [[[2], [1]]], no: [[1], [[2]]] }],
  [{ $elemMatch: {} }, { yes: [[{}]], no: [[{ a: 1 }], []] }],
  [{ $elemMatch: { $not: { a: 1 } } }, { yes: [[{}], [{ a: 2 }], [7]], no: [[{ a: 1 }], []] }],
  [{ $elemMatch: { $nor: [{ a: 1 }, { b: 1 }] } }, { yes: [[{}], [{ a: 2 }]], no: [[{ a: 1 }, { b: 1 }]] }],
  [
    { $keyMapMatch: { $regex: '^[a-z]+$' } },
    { yes: [{ hello: 0 }, { a: 1, b: 2 }, { a: 1, b4: 2 }], no: [{ b4: 2 }, {}, 'a', ['a']] },
  ],
  [{ $keyMapMatch: { $eq: 'a' } }, { yes: [{ a: 1 }], no: [{ b: 'a' }] }],
  [{ a: 1 }, { yes: [{ a: 1 }, { a: 1, b: 2 }], no: [] }],
  [{}, { yes: [{}], no: [{ a: 1 }, [], null, 0] }],
  [
    { $gt: 3, $lt: 7 },
    { yes: [6], no: [2, 9] },
  ],
  [{ $and: [{ $gt: 3 }, { $lt: 7 }] }, { yes: [6], no: [2, 9] }],
  [{ $or: [{ $lt: 3 }, { $gt: 7 }] }, { yes: [2, 9], no: [6] }],
  [{ $nor: [{ $lt: 3 }, { $gt: 7 }] }, { yes: [6], no: [2, 9] }],
  [{ $and: [{ $gt: 3 }, 5] }, { yes: [5], no: [6] }],
]

for (const [condition, { yes, no }] of conditions) {
  test(`${JSON.stringify(condition)} selects as CouchDB does`, () => {
    for (const value of yes) assert.equal(matches({ x: condition }, { x: value }), true, JSON.stringify(value))
    for (const value of no) assert.equal(matches({ x: condition }, { x: value }), false, JSON.stringify(value))
  })
  // A bare value takes no $not.
  if (typeof condition !== 'object' || condition === null || Array.isArray(condition)) continue
  test(`$not turns ${JSON.stringify(condition)} around where the field is there`, () => {
    for (const value of yes)
      assert.equal(matches({ x: { $not: condition } }, { x: value }), false, JSON.stringify(value))
    for (const value of no) assert.equal(matches({ x: { $not: condition } }, { x: value }), true, JSON.stringify(value))
  })
}

const documents: [string, unknown, Json, boolean][] = [
  ['an empty selector selects everything', {}, { a: 1 }, true],
  ['no selector selects everything', undefined, {}, true],
  ['null selects everything', null, { a: 1 }, true],
  ['several fields must all match', { a: 1, b: 2 }, { a: 1, b: 2 }, true],
  ['several fields must all match: one does not', { a: 1, b: 2 }, { a: 1, b: 3 }, false],
  ['a missing field is not null', { a: null }, {}, false],
  ['a missing field is not unequal', { a: { $ne: 5 } }, {}, false],
  ['a missing field is not outside a list', { a: { $nin: [5] } }, {}, false],
  ['a missing field is of no type', { a: { $not: { $type: 'string' } } }, {}, false],
  ['a missing field is not what it is not', { $not: { a: 5 } }, {}, false],
  ['a missing field does not fail to match a pattern', { a: { $not: { $regex: 'x' } } }, {}, false],
  ['a missing field does not exist', { a: { $exists: false } }, {}, true],
  ['a missing field does not exist, said with $not', { a: { $not: { $exists: true } } }, {}, true],
  ['a missing field does not exist, said with $nor', { $nor: [{ a: { $exists: true } }] }, {}, true],
  ['null exists', { a: { $exists: true } }, { a: null }, true],
  ['null exists, so it is not missing', { a: { $exists: false } }, { a: null }, false],
  ['$exists inside $not lets a missing field through', { a: { $not: { $exists: true, $eq: 0 } } }, {}, true],
  ['$exists inside $not keeps what is there and equal', { a: { $not: { $exists: true, $eq: 0 } } }, { a: 0 }, false],
  ['an empty $and is true', { $and: [] }, {}, true],
  ['an empty $or is true', { $or: [] }, {}, true],
  ['an empty $nor is true', { $nor: [] }, {}, true],
  ['an empty $and on a field is true of a missing one', { a: { $and: [] } }, {}, true],
  ['$not of an empty $and is true, since an empty $or is', { a: { $not: { $and: [] } } }, {}, true],
  ['$not of an empty $or is true, since an empty $and is', { a: { $not: { $or: [] } } }, {}, true],
  ['an empty $or takes nothing from its neighbours', { a: 1, $or: [] }, { a: 2 }, false],
  ['$not of $or is neither', { $not: { $or: [{ a: 1 }, { b: 1 }] } }, { a: 2, b: 1 }, false],
  ['$not of $or is neither, and neither may be missing', { $not: { $or: [{ a: 1 }, { b: 1 }] } }, { a: 2 }, false],
  ['$not of $and is one of them', { $not: { a: 1, b: 1 } }, { a: 1, b: 2 }, true],
  ['$not of $and is one of them, which may not be missing', { $not: { a: 1, b: 1 } }, { a: 1 }, false],
  ['$not of $nor is $or', { $not: { $nor: [{ a: 1 }, { b: 1 }] } }, { b: 1 }, true],
  ['$not twice is nothing', { $not: { $not: { a: 1 } } }, { a: 1 }, true],
  ['$not of an empty object is anything else that is there', { $not: { x: {} } }, { x: { a: 1 } }, true],
  ['$not of an empty object is not a missing field', { $not: { x: {} } }, {}, false],
  ['a nested object is a path', { a: { b: { c: 1 } } }, { a: { b: { c: 1, d: 2 } } }, true],
  ['a dotted name is a path', { 'a.b.c': 1 }, { a: { b: { c: 1 } } }, true],
  ['dotted names and nested objects mix', { 'a.b': { c: 1 } }, { a: { b: { c: 1 } } }, true],
  ['an escaped dot is part of a name', { 'a\\.b': 1 }, { 'a.b': 1 }, true],
  ['an escaped dot is no path', { 'a\\.b': 1 }, { a: { b: 1 } }, false],
  ['a number in a path is an index into a list', { 'a.1': 'y' }, { a: ['x', 'y'] }, true],
  ['a number in a path is a name in an object', { 'a.1': 'y' }, { a: { 1: 'y' } }, true],
  ['an index beyond a list is no null', { 'a.3': null }, { a: ['x'] }, false],
  ['an index beyond a list is not even missing', { 'a.3': { $exists: false } }, { a: ['x'] }, false],
  ['a name in a list leads nowhere', { 'a.b': { $exists: false } }, { a: [{ b: 1 }] }, false],
  ['a path through a number leads nowhere', { 'a.b': { $exists: false } }, { a: 1 }, false],
  ['a path through null leads nowhere', { 'a.b': { $exists: false } }, { a: null }, false],
  ['a path through a missing field is missing', { 'a.b': { $exists: false } }, {}, true],
  ['a path through $not', { a: { $not: { b: { $gt: 1 } } } }, { a: { b: 1 } }, true],
  [
    'a logical operator below a field applies to the field',
    { a: { $or: [{ b: 1 }, { c: 1 }] } },
    { a: { c: 1 } },
    true,
  ],
  ['underscores stand for dollar signs', { _or: [{ a: { _eq: 1 } }, { a: { _regex: 'x' } }] }, { a: 'xx' }, true],
  ['an underscore that is no operator begins a name', { _id: 'x' }, { _id: 'x' }, true],
  ['__proto__ is a name like any other', JSON.parse('{"__proto__": {"a": 1}}'), {}, false],
  ['constructor is a name like any other', { constructor: { $exists: true } }, {}, false],
  ['strings compare by code point', { a: { $lt: '\u{1f600}' } }, { a: '\uffff' }, true],
  ['strings compare by code point, not by UTF-16 unit', { a: { $gt: '\u{1f600}' } }, { a: '\uffff' }, false],
  ['capital letters come before small ones', { a: { $lt: 'a' } }, { a: 'Z' }, true],
  [
    'objects compare in the order in which they are written',
    { a: { $eq: { x: 1, y: 2 } } },
    { a: { y: 2, x: 1 } },
    false,
  ],
  ['an empty selector among others selects no document', { $and: [{}, { a: 1 }] }, { a: 1 }, false],
]

for (const [name, selector, document, expected] of documents) {
  test(name, () => assert.equal(matches(selector, document), expected))
}

test('a pattern that makes other engines backtrack answers at once', async () => {
  const spentMs = await cpuMsOf(() =>
    assert.equal(matches({ a: { $regex: '(a+)+$' } }, { a: `${'a'.repeat(50_000)}!` }), false),
  )
  assert.ok(spentMs < 1_000, `it took ${spentMs} ms of a processor`)
})
