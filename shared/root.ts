import { findPackageJSON } from 'node:module'
import { dirname } from 'node:path'

/** The package's own folder, for the sources and the built package alike. */
export const root = dirname(findPackageJSON(import.meta.url)!)
