import assert from 'node:assert/strict'
import { globSync, readFileSync } from 'node:fs'
import path from 'node:path'
import { test } from 'node:test'
import { repository } from './checkout.ts'

const LONGEST = 120
/** What has no white space in so many characters, such as a key or a regular expression, cannot be broken. */
const UNBREAKABLE = /\S{100}/
const WRITTEN_BY_A_SCRIPT = /^\/\/ biome-ignore-all format: written by a script/
const FILES = '{bin,cli,examples,migrations,receiver,scripts,server,shared,test}/**/*.{ts,mts,js,mjs,graphql}'

const isTooLong = (line: string): boolean => [...line].length > LONGEST && !UNBREAKABLE.test(line)

test('no line is longer than 120 characters, unless a word in it is longer than 100', () => {
  const files = globSync(FILES, { cwd: repository, exclude: ['**/node_modules/**', '**/dist/**'] }).sort()
  assert.ok(files.length > 300, `only ${files.length} files were looked at`)
  const tooLong = files.flatMap(file => {
    const text = readFileSync(path.join(repository, file), 'utf8')
    if (WRITTEN_BY_A_SCRIPT.test(text)) return []
    return text.split('\n').flatMap((line, index) => (isTooLong(line) ? [`${file}:${index + 1}`] : []))
  })
  assert.deepEqual(tooLong, [])
})
