import { readFileSync } from 'node:fs'
import { findPackageJSON } from 'node:module'

/** The version in this package's own package.json, from source and from the built package alike. */
export const version: string = JSON.parse(readFileSync(findPackageJSON(import.meta.url)!, 'utf8')).version
