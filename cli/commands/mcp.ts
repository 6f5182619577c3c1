import { spawn } from 'node:child_process'
import { text } from 'node:stream/consumers'
import { fileURLToPath } from 'node:url'
import { Command } from '@commander-js/extra-typings'
import { version } from '../../shared/version.ts'
import { Session } from '../connection/session.ts'
import { describeCommand } from '../help/tree.ts'
import { Peer } from '../mcp/peer.ts'
import { capped, type Tool, toolsOf, wordsOf } from '../mcp/tools.ts'
import { examples } from '../options.ts'

export const mcpCommand = () =>
  new Command('mcp')
    .summary('give an assistant the commands that read, as tools (Model Context Protocol)')
    .description(
      'Serves the commands that read as tools over standard input and output, for assistants that speak the Model ' +
        'Context Protocol. They see what the access token in use sees, at most 50 rows at once, and no payloads ' +
        'unless asked for. A token with the permission read is enough, and is all that an assistant should have.',
    )
    .option('--allow-changes', 'also the commands that change something; each asks its person where a terminal would')
    .addHelpText(
      'after',
      examples(
        ['In an assistant’s settings, as the command of a server', 'tidings mcp --profile support'],
        ['With redeliveries and changes of webhooks', 'tidings mcp --allow-changes'],
      ),
    )
    .action(async ({ allowChanges = false }, command) => {
      const session = new Session(command)
      // Fails now, where a person sees it, if there is no connection to use.
      void session.connection
      const { wholeProgram } = await import('../main.ts')
      const tools = toolsOf(describeCommand(await wholeProgram()), { allowChanges })
      await serve(tools, connectionFlags(command.optsWithGlobals()))
    })

/** The connection of this command, for those that it runs. */
const connectionFlags = (given: Record<string, unknown>): string[] =>
  (['profile', 'url', 'apiKey', 'apiSecretFile'] as const).flatMap(name => {
    const flag = name.replaceAll(/[A-Z]/g, letter => `-${letter.toLowerCase()}`)
    return typeof given[name] === 'string' ? [`--${flag}=${given[name]}`] : []
  })

/** Answers until standard input ends. */
const serve = async (tools: Tool[], connection: string[]): Promise<void> => {
  const peer = new Peer(process.stdin, process.stdout)
  let canElicit = false
  /** Asks the person before the assistant; without a way to ask, the answer is no. */
  const confirm = async (question: string): Promise<boolean> => {
    if (!canElicit) return false
    const properties = { confirm: { type: 'boolean', title: question } }
    const answer = await peer.ask<{ action?: unknown; content?: { confirm?: unknown } }>('elicitation/create', {
      message: question,
      requestedSchema: { type: 'object', properties, required: ['confirm'] },
    })
    return answer.action === 'accept' && answer.content?.confirm === true
  }
  await peer.serve({
    initialize: ({ protocolVersion, capabilities }) => {
      canElicit = typeof capabilities === 'object' && capabilities !== null && 'elicitation' in capabilities
      const agreed = PROTOCOLS.find(each => each === protocolVersion) ?? PROTOCOLS[0]
      return { protocolVersion: agreed, capabilities: { tools: {} }, serverInfo: { name: 'tidings', version } }
    },
    ping: () => ({}),
    'tools/list': () => ({
      tools: tools.map(({ name, description, inputSchema, isChange }) => ({
        name,
        description,
        inputSchema,
        annotations: { readOnlyHint: !isChange, destructiveHint: isChange },
      })),
    }),
    'tools/call': async ({ name, arguments: args }) => {
      const tool = tools.find(each => each.name === name)
      if (!tool) return failed(`There is no tool ${String(name)}.`)
      try {
        const { payloads = false, ...given } = (args ?? {}) as Record<string, unknown>
        return await call(wordsOf(tool, given), connection, { payloads: payloads === true, confirm })
      } catch (error) {
        return failed((error as Error).message)
      }
    },
  })
}

/** The versions of the protocol that this speaks, the newest first. */
const PROTOCOLS = ['2025-11-25', '2025-06-18', '2025-03-26', '2024-11-05'] as const

const failed = (message: string) => ({ content: [{ type: 'text' as const, text: message }], isError: true })

/** Runs one command. If it wants a confirmation, asks for it, and runs it again. */
const call = async (
  words: string[],
  connection: string[],
  { payloads, confirm }: { payloads: boolean; confirm: (question: string) => Promise<boolean> },
) => {
  const flags = [...connection, '--no-color']
  const first = await run([...flags, ...words])
  const [, question] = UNASKED.exec(first.stderr) ?? []
  if (first.code === 0 || question === undefined) return answerOf(first, payloads)
  if (!(await confirm(question))) return failed(`Not confirmed: nothing was done. ${question}`)
  const yes = words.toSpliced(words.indexOf('--'), 0, '--yes')
  return answerOf(await run([...flags, ...yes]), payloads)
}

/** How a command refuses that has nobody to ask. */
const UNASKED = /"message": ?"((?:[^"\\]|\\.)*?) There is no terminal to ask on\."/

const answerOf = ({ code, stdout, stderr }: Ran, payloads: boolean) =>
  code === 0
    ? { content: [{ type: 'text' as const, text: capped(stdout, { payloads }) }] }
    : failed(capped(stderr, { payloads: true }))

interface Ran {
  code: number | null
  stdout: string
  stderr: string
}

const PROGRAM = fileURLToPath(new URL('../../bin/tidings.js', import.meta.url))

const run = async (args: string[]): Promise<Ran> => {
  const child = spawn(process.execPath, [PROGRAM, ...args], { stdio: ['ignore', 'pipe', 'pipe'] })
  const ended = new Promise<number | null>((resolve, reject) => child.once('close', resolve).once('error', reject))
  const [stdout, stderr, code] = await Promise.all([text(child.stdout), text(child.stderr), ended])
  return { code, stdout, stderr }
}
