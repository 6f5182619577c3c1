import { mkdtemp, rm } from 'node:fs/promises'
import os from 'node:os'
import path from 'node:path'
import { aftercare } from '../../scripts/aftercare.js'
import { startThrowAwayDatabase } from '../../scripts/throw-away-database.js'
import type { Case } from './cases/case.ts'
import { cases } from './cases/index.ts'
import { type Engine, openSql } from './stage/sql.ts'
import { type Expectation, openStage } from './stage/stage.ts'

export type CaseOptions = {
  /** Names of cases, or `all`. */
  names: string[]
  /** The engines to run on; all if empty. */
  engines: string[]
  size: number | undefined
  /** Whether cases may make the named database servers read-only and change their settings. */
  ownsServers: boolean
  repeat: number
  /** Servers of the MySQL family; none: one is started. */
  servers: string[]
  say: (line: string) => void
}

type Result = {
  name: string
  engine: string
  verdict: 'green' | 'red' | 'failed' | 'skipped'
  seen: string
  tookS: number
}

export const listCases = (): string =>
  cases.map(({ name, engines, says }) => `${name.padEnd(28)} ${engines.join(', ').padEnd(24)} ${says}`).join('\n')

/** Runs cases one after the other on each engine, and returns whether all passed. */
export const runCases = async (options: CaseOptions): Promise<boolean> => {
  const unknown = options.names.filter(name => name !== 'all' && !cases.some(it => it.name === name))
  if (unknown.length > 0) throw new Error(`There is no case ${unknown.join(', ')}. --list shows those that there are.`)
  const chosen = options.names.includes('all') ? cases : cases.filter(it => options.names.includes(it.name))
  const folder = await mkdtemp(path.join(os.tmpdir(), 'tidings-case-'))
  const care = aftercare(folder)
  const { servers, stop } = await openServers(options, folder)
  const results: Result[] = []
  try {
    for (const it of chosen) {
      for (const server of servers) {
        for (let n = 0; n < options.repeat; n++) results.push(await runCase(it, server, options, care))
      }
    }
  } finally {
    await stop()
    await care.end()
    await rm(folder, { recursive: true, force: true })
  }
  options.say(`\n${table(results)}`)
  return results.every(({ verdict }) => verdict === 'green' || verdict === 'skipped')
}

type DatabaseServer = { engine: Engine; url: string; isOwn: boolean }

/** The servers that are named, or a throw-away one; and a folder for SQLite. */
const openServers = async ({ engines, ownsServers, servers: named }: CaseOptions, folder: string) => {
  const isWanted = (engine: Engine) => engines.length === 0 || engines.includes(engine)
  const servers: DatabaseServer[] = []
  const stopping: (() => Promise<void>)[] = []
  for (const url of named) {
    servers.push({ engine: await engineOf(url), url, isOwn: ownsServers })
  }
  if (servers.length === 0 && (isWanted('mysql') || isWanted('mariadb'))) {
    const { url, stop } = await startThrowAwayDatabase()
    stopping.push(stop)
    servers.push({ engine: await engineOf(url), url, isOwn: true })
  }
  servers.push({ engine: 'sqlite', url: `sqlite:${folder}`, isOwn: true })
  const missing = engines.filter(engine => !servers.some(it => it.engine === engine))
  const stop = async () => {
    for (const one of stopping) await one()
  }
  if (missing.length > 0) {
    await stop()
    throw new Error(`There is no server for ${missing.join(', ')}: name one in TIDINGS_TEST_DATABASE_URLS.`)
  }
  return { servers: servers.filter(it => isWanted(it.engine)), stop }
}

const engineOf = async (url: string): Promise<Engine> => {
  const sql = await openSql(url)
  await sql.close()
  return sql.engine
}

const runCase = async (
  it: Case,
  server: DatabaseServer,
  options: CaseOptions,
  care: ReturnType<typeof aftercare>,
): Promise<Result> => {
  const startedAt = Date.now()
  const result = (verdict: Result['verdict'], seen: string): Result => ({
    name: it.name,
    engine: server.engine,
    verdict,
    seen,
    tookS: Math.round((Date.now() - startedAt) / 1000),
  })
  if (!it.engines.includes(server.engine)) return result('skipped', `not for ${server.engine}`)
  if (it.needsOwnServer && !server.isOwn) return result('skipped', 'needs a server for itself: --own-servers allows it')
  options.say(`\n${it.name} (${server.engine}): ${it.says}`)
  const onLine = (line: string) =>
    options.say(`  ${((Date.now() - startedAt) / 1000).toFixed(1).padStart(5)} s  ${line}`)
  let expectations: Expectation[] = []
  try {
    const opened = await openStage({
      url: server.url,
      size: options.size,
      isPulled: it.isPulled ?? false,
      onLine,
      include: care.include,
      exclude: care.exclude,
    })
    expectations = opened.expectations
    let isWell = false
    try {
      await it.run(opened.stage)
      isWell = expectations.every(({ holds }) => holds)
    } finally {
      if (!isWell) for (const line of opened.written()) onLine(line)
      await opened.clear()
    }
  } catch (error) {
    onLine(`✗ the case came to no end: ${(error as Error).stack}`)
    return result('failed', (error as Error).message.split('\n')[0]!)
  }
  const broken = expectations.filter(({ holds }) => !holds)
  const shown = broken.length > 0 ? broken : expectations
  return result(broken.length > 0 ? 'red' : 'green', shown.map(({ seen }) => seen).join('; '))
}

const table = (results: Result[]): string => {
  const seen = Map.groupBy(results, ({ verdict }) => verdict)
  const lines = results.map(
    ({ name, engine, verdict, seen, tookS }) =>
      `${verdict.padEnd(8)} ${name.padEnd(28)} ${engine.padEnd(8)} ${`${tookS} s`.padStart(6)}  ${seen}`,
  )
  const counts = [...seen].map(([verdict, list]) => `${list.length} ${verdict}`).join(', ')
  return [...lines, '', counts].join('\n')
}
