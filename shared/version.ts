import { readFileSync } from 'node:fs'
import { findPackageJSON } from 'node:module'

/** The version in the package's package.json, for the sources and the built package alike. */
export const version: string = JSON.parse(readFileSync(findPackageJSON(import.meta.url)!, 'utf8')).version
