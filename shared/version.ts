import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { root } from './root.ts'

/** The version in the package's package.json. */
export const version: string = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')).version
