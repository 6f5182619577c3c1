import { chmodSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { homedir } from 'node:os'
import { dirname, join } from 'node:path'
import { codeOf } from '../../shared/errors.ts'
import { makeFolder } from '../../shared/make-folder.ts'
import { CliError, exitCodes, fileFault } from '../errors.ts'
import { neutralise } from '../output/neutralise.ts'

/** A server's address and its access token. */
export interface Profile {
  url: string
  apiKey: string
  apiSecret: string
}

export interface Profiles {
  /** The profile to use if none is named; by default `sandbox`. */
  current?: string
  profiles: Record<string, Profile>
}

/**
 * `$XDG_CONFIG_HOME/tidings/profiles.json`, by default in `~/.config`. A relative XDG_CONFIG_HOME is ignored, as the
 * XDG base directory specification asks.
 */
export const profilesPath = (): string => {
  const home = process.env.XDG_CONFIG_HOME
  return join(home?.startsWith('/') ? home : join(homedir(), '.config'), 'tidings', 'profiles.json')
}

/** All saved profiles; none if there is no file yet. Throws a CliError if the file is unreadable. */
export const readProfiles = (): Profiles => {
  const path = profilesPath()
  let text: string
  try {
    text = readFileSync(path, 'utf8')
  } catch (error) {
    if (codeOf(error) === 'ENOENT') return { profiles: {} }
    throw unreadable(path, fileFault(error))
  }
  let stored: unknown
  try {
    stored = JSON.parse(text)
  } catch {
    throw unreadable(path, 'it is not JSON')
  }
  if (!isProfiles(stored))
    throw unreadable(path, 'it is not of the form {"profiles":{"NAME":{"url","apiKey","apiSecret"}}}')
  return stored
}

/**
 * Checks that a profile can be saved, before anything is created that only a profile would keep. Throws a CliError
 * otherwise.
 */
export const tryToSave = (): void => {
  const stored = readProfiles()
  writing(() => rmSync(writeBeside(stored)))
}

/** Adds or replaces a profile. With `current`, it becomes the default. Throws a CliError if it cannot be saved. */
export const saveProfile = (name: string, profile: Profile, { current = false } = {}): void => {
  const stored = readProfiles()
  const { url, apiKey, apiSecret } = profile
  stored.profiles[name] = { url, apiKey, apiSecret }
  if (current) stored.current = name
  write(stored)
}

/** Makes a saved profile the default. Throws a CliError for an unknown name. */
export const useProfile = (name: string): void => {
  const stored = readProfiles()
  if (!Object.hasOwn(stored.profiles, name)) throw noSuchProfile(name, stored)
  stored.current = name
  write(stored)
}

/** Deletes a saved profile. Throws a CliError for an unknown name. */
export const removeProfile = (name: string): void => {
  const stored = readProfiles()
  if (!Object.hasOwn(stored.profiles, name)) throw noSuchProfile(name, stored)
  delete stored.profiles[name]
  if (stored.current === name) delete stored.current
  write(stored)
}

export const noSuchProfile = (name: string, { profiles }: Profiles): CliError => {
  const names = Object.keys(profiles)
  return new CliError(
    exitCodes.notFound,
    'NO_SUCH_PROFILE',
    `There is no profile named ${JSON.stringify(name)}.`,
    names.length > 0 ? `Saved profiles: ${names.join(', ')}.` : 'Save one with: tidings login',
  )
}

/**
 * The file contains secrets: others can never read it, not even while it is being written, and it is replaced in one
 * step.
 */
const write = (stored: Profiles): void => writing(() => renameSync(writeBeside(stored), profilesPath()))

/** Writes a file beside the one to replace, and returns its path. */
const writeBeside = (stored: Profiles): string => {
  const path = profilesPath()
  const folder = dirname(path)
  makeFolder(folder)
  chmodSync(folder, 0o700)
  const temporary = `${path}.${process.pid}.tmp`
  rmSync(temporary, { force: true })
  writeFileSync(temporary, `${JSON.stringify(stored, null, 2)}\n`, { mode: 0o600, flag: 'wx' })
  return temporary
}

const writing = (work: () => void): void => {
  try {
    work()
  } catch (error) {
    throw new CliError(
      exitCodes.failed,
      'PROFILES_UNWRITABLE',
      `The profiles in ${neutralise(profilesPath())} cannot be written: ${fileFault(error)}.`,
      'Let this user write to its folder, or name another: XDG_CONFIG_HOME=FOLDER',
    )
  }
}

const unreadable = (path: string, why: string): CliError =>
  new CliError(
    exitCodes.failed,
    'PROFILES_UNREADABLE',
    `The profiles in ${neutralise(path)} cannot be read: ${why}.`,
    'Repair the file, or move it away and save the profile again with: tidings login',
  )

const isProfiles = (value: unknown): value is Profiles => {
  if (!isRecord(value) || !isRecord(value.profiles)) return false
  if (value.current !== undefined && typeof value.current !== 'string') return false
  return Object.values(value.profiles).every(
    profile => isRecord(profile) && ['url', 'apiKey', 'apiSecret'].every(field => typeof profile[field] === 'string'),
  )
}

const isRecord = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && !Array.isArray(value)
