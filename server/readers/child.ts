import { type ChildProcess, fork } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { getCompileCacheDir } from 'node:module'
import type { Socket } from 'node:net'
import { setPriority } from 'node:os'
import { dirname, join } from 'node:path'
import { root } from '../../shared/root.ts'
import { Mode } from '../mode.ts'
import { otherRelease } from '../release.ts'
import { lastWords } from './last-words.ts'
import { BODIES_FD, type FromReader, type ToReader } from './messages.ts'

/** Megabytes of a reader's heap: of what lives long, and of each of the three parts for what is new. */
const OLD_MB = 104
const NEW_MB = 8
export const HEAP_MB = OLD_MB + 3 * NEW_MB

/** How old what is known of a process may be, which costs a read of a file. */
const STARVED_EACH_MS = 5

export type Start = Omit<Extract<ToReader, { kind: 'start' }>, 'kind'>
/**
 * `isKilled`: from outside; a process whose heap is full ends itself. `said`: what it wrote besides its log, once
 * it has ended.
 */
export type Ending = { isKilled: boolean; wasReady: boolean; said: Promise<string | undefined> }
export type Heard = {
  message(message: Exclude<FromReader, { kind: 'ready' }>): void
  ready(): void
  /** It is of another release than this process, and is killed. */
  isOther(fault: string): void
  failed(error: Error): void
  ended(how: Ending): void
}

/** A process that answers queries. */
export class ReaderProcess {
  readonly #child: ChildProcess
  readonly #mode = new Mode<'starting' | 'ready' | 'ended'>('starting', {
    starting: ['ready', 'ended'],
    ready: ['ended'],
    ended: [],
  })
  /** Resolves when the bodies announced so far have come. */
  #bodyReceived: Promise<unknown> = Promise.resolve()
  #starved = { ms: 0, readAt: Number.NEGATIVE_INFINITY }

  constructor(start: Start, heard: Heard) {
    const child = fork(join(root, 'bin/reader.js'), {
      env: { ...process.env, ...compileCache() },
      execArgv: [
        `--max-old-space-size=${OLD_MB}`,
        // V8's own choice is 64 MB, which garbage fills before it is collected.
        `--max-semi-space-size=${NEW_MB}`,
        // A query that makes much garbage would keep a core busy for each thread that collects it.
        '--single-threaded-gc',
        '--disable-warning=ExperimentalWarning',
      ],
      serialization: 'advanced',
      // Standard output belongs to a command's output.
      stdio: ['ignore', 'ignore', 'pipe', 'ipc', 'pipe'],
    })
    this.#child = child
    yieldToOthers(child, STARTING_NICENESS)
    child.unref()
    child.channel?.unref()
    this.#bodies.on('error', () => {}).unref()
    const stderr = child.stderr as Socket
    const said = lastWords(stderr, line => process.stderr.write(line))
    stderr.unref()
    child.on('error', error => heard.failed(error))
    child.on('message', (message: FromReader) => {
      if (message.kind !== 'ready') return heard.message(message)
      const other = otherRelease(message.release)
      if (other !== undefined) {
        heard.isOther(other)
        return this.kill()
      }
      this.#mode.enter('ready')
      yieldToOthers(child, NICENESS)
      heard.ready()
    })
    child.on('exit', (_code, signal) => {
      const wasReady = this.isReady
      this.#mode.enter('ended')
      heard.ended({ isKilled: signal === 'SIGKILL', wasReady, said })
    })
    this.send({ kind: 'start', ...start })
  }

  get isReady(): boolean {
    return this.#mode.now === 'ready'
  }

  /**
   * How long it has waited for a processor that others had: the second figure of Linux's `/proc/PID/schedstat`
   * (sched-stats.rst), always 0 on other systems. It is some milliseconds old.
   */
  get starvedMs(): number {
    const now = performance.now()
    if (now - this.#starved.readAt < STARVED_EACH_MS) return this.#starved.ms
    this.#starved.readAt = now
    try {
      this.#starved.ms = Number(readFileSync(`/proc/${this.#child.pid}/schedstat`, 'utf8').split(' ')[1]) / 1e6 || 0
    } catch {
      // Another system, or it has ended: then it waits for nothing more.
    }
    return this.#starved.ms
  }

  // The process may have ended already; its exit event follows.
  send(message: ToReader): void {
    this.#child.send(message, () => {})
  }

  kill(): void {
    this.#child.kill('SIGKILL')
  }

  /** Bodies come in the order in which they were announced. Never resolves if the reader ends before. */
  receive(bytes: number): Promise<Uint8Array[]> {
    const received = this.#bodyReceived.then(() => readParts(this.#bodies, bytes))
    this.#bodyReceived = received
    return received
  }

  get #bodies(): Socket {
    return this.#child.stdio[BODIES_FD] as Socket
  }
}

/** What the server has to do with what answers its queries. */
export type Queries = Pick<ReaderProcess, 'isReady' | 'starvedMs' | 'send' | 'receive' | 'kill'>

const readParts = async (pipe: Socket, bytes: number): Promise<Uint8Array[]> => {
  const parts: Uint8Array[] = []
  for (let left = bytes; left > 0; ) {
    const part: Buffer | null = pipe.read(Math.min(left, pipe.readableLength))
    if (part) {
      parts.push(part)
      left -= part.length
    } else await new Promise(resolve => pipe.once('readable', resolve))
  }
  return parts
}

/** The compile cache of this process, with which a reader starts in half the time. */
const compileCache = (): { NODE_COMPILE_CACHE?: string } => {
  const folder = getCompileCacheDir()
  // Node appends a folder for its version.
  return folder === undefined ? {} : { NODE_COMPILE_CACHE: dirname(folder) }
}

/** A lower priority, so that deliveries come first when CPU is scarce. */
const NICENESS = 10
/** It starts before what the others read. */
const STARTING_NICENESS = 5

const yieldToOthers = ({ pid }: ChildProcess, niceness: number): void => {
  try {
    if (pid !== undefined) setPriority(pid, niceness)
  } catch {
    // The process has already ended.
  }
}
