import assert from 'node:assert/strict'
import { globSync, readFileSync } from 'node:fs'
import path from 'node:path'
import { test } from 'node:test'
import { repository } from './checkout.ts'

const LONGEST = 120
const FOLDERS = '{bin,cli,examples,migrations,receiver,scripts,server,shared,test}'

/** What stands on a line without its indentation and the mark of a comment. */
const content = (line: string): string => line.replace(/^\s*(\/\/|\*|#)?\s*/, '').trimEnd()

/** With white space at which it could be broken: one long word, such as a URL, may stand on a line of its own. */
const isTooLong = (line: string): boolean => [...line].length > LONGEST && /\s/.test(content(line))

test('no line is longer than 120 characters, but for one long word on a line of its own', () => {
  const files = globSync(`${FOLDERS}/**/*.{ts,js,graphql}`, { cwd: repository, exclude: ['**/node_modules/**'] }).sort()
  assert.ok(files.length > 300, `only ${files.length} files were looked at`)
  const tooLong = files.flatMap(file =>
    readFileSync(path.join(repository, file), 'utf8')
      .split('\n')
      .flatMap((line, index) => (isTooLong(line) ? [`${file}:${index + 1}`] : [])),
  )
  assert.deepEqual(tooLong, [])
})
