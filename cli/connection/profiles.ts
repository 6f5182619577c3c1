import { chmodSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { homedir } from 'node:os'
import { dirname, join } from 'node:path'
import { makeFolder } from '../../shared/make-folder.ts'
import { CliError, exitCodes, fileFault } from '../errors.ts'
import { neutralise } from '../output/neutralise.ts'

/** Where a server is and the access token to use there. */
export interface Profile {
  url: string
  apiKey: string
  apiSecret: string
}

export interface Profiles {
  /** The profile used when none is named; `sandbox` when this is not set. */
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

/** All saved profiles; none when there is no file yet. Throws a CliError when the file cannot be read as one. */
export const readProfiles = (): Profiles => {
  const path = profilesPath()
  let text: string
  try {
    text = readFileSync(path, 'utf8')
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return { profiles: {} }
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
 * Makes sure that a profile can be saved, before anything is made that only a profile would keep. Throws a CliError
 * when not.
 */
export const tryToSave = (): void => {
  const stored = readProfiles()
  writing(() => rmSync(writeBeside(stored)))
}

/** Adds or replaces one profile. With `current`, it becomes the one used when none is named. */
export const saveProfile = (name: string, profile: Profile, { current = false } = {}): void => {
  const stored = readProfiles()
  const { url, apiKey, apiSecret } = profile
  stored.profiles[name] = { url, apiKey, apiSecret }
  if (current) stored.current = name
  write(stored)
}

/** Makes a saved profile the one used when none is named. Throws a CliError when there is none of that name. */
export const useProfile = (name: string): void => {
  const stored = readProfiles()
  if (!Object.hasOwn(stored.profiles, name)) throw noSuchProfile(name, stored)
  stored.current = name
  write(stored)
}

/** Forgets a saved profile. Throws a CliError when there is none of that name. */
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
 * The file holds secrets: it is never readable by others, not even while it is being written, and is replaced in one
 * step.
 */
const write = (stored: Profiles): void => writing(() => renameSync(writeBeside(stored), profilesPath()))

/** Answers with the path of a file beside the one that is to be replaced. */
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
