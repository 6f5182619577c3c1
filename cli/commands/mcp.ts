import { spawn } from 'node:child_process'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { Command, type CommandUnknownOpts } from '@commander-js/extra-typings'
import type { ServerContext } from '@modelcontextprotocol/server'
import { root } from '../../shared/root.ts'
import { version } from '../../shared/version.ts'
import { Session } from '../connection/session.ts'
import { describeCommand } from '../help/tree.ts'
import { capped, type Tool, toolsOf, wordsOf } from '../mcp/tools.ts'
import { examples } from '../options.ts'

/** @param wholeTree the program with every command loaded */
export const mcpCommand = (wholeTree: () => Promise<CommandUnknownOpts>) =>
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
      const tools = toolsOf(describeCommand(await wholeTree()), { allowChanges })
      await serve(tools, connectionFlags(command.optsWithGlobals()))
    })

/** The connection of this command, for those that it runs. */
const connectionFlags = (given: Record<string, unknown>): string[] =>
  (['profile', 'url', 'apiKey', 'apiSecretFile'] as const).flatMap(name => {
    const flag = name.replaceAll(/[A-Z]/g, letter => `-${letter.toLowerCase()}`)
    return typeof given[name] === 'string' ? [`--${flag}=${given[name]}`] : []
  })

/** Answers until standard input ends. The SDK is loaded by this command alone. */
const serve = async (tools: Tool[], connection: string[]): Promise<void> => {
  const [{ acceptedContent, fromJsonSchema, inputRequired, McpServer }, { serveStdio }] = await Promise.all([
    import('@modelcontextprotocol/server'),
    import('@modelcontextprotocol/server/stdio'),
  ])
  /** A command that wants a confirmation is run again with the person's, whom the assistant's program asks. */
  const call = async (tool: Tool, args: Record<string, unknown>, { mcpReq }: ServerContext) => {
    const { payloads = false, ...given } = args
    const words = [...connection, '--no-color', ...wordsOf(tool, given)]
    const first = await run(words, mcpReq.signal)
    const [, question] = UNASKED.exec(first.stderr) ?? []
    if (question === undefined) return answerOf(first, payloads === true)
    if (mcpReq.inputResponses === undefined) {
      const properties = { confirm: { type: 'boolean' as const, title: question } }
      const requestedSchema = { type: 'object' as const, properties, required: ['confirm'] }
      return inputRequired({
        inputRequests: { [question]: inputRequired.elicit({ message: question, requestedSchema }) },
      })
    }
    // The answer counts for the very question that was asked.
    if (acceptedContent(mcpReq.inputResponses, question)?.confirm !== true)
      return failed(`Not confirmed: nothing was done. ${question}`)
    return answerOf(await run(words.toSpliced(words.indexOf('--'), 0, '--yes'), mcpReq.signal), payloads === true)
  }
  serveStdio(() => {
    const server = new McpServer({ name: 'tidings', version })
    for (const tool of tools) {
      const { name, description, isChange, inputSchema } = tool
      const annotations = { readOnlyHint: !isChange, destructiveHint: isChange }
      const config = { description, annotations, inputSchema: fromJsonSchema<Record<string, unknown>>(inputSchema) }
      server.registerTool(name, config, (args, context) => call(tool, args, context))
    }
    return server
  })
}

const failed = (message: string) => ({ content: [{ type: 'text' as const, text: message }], isError: true })

/** How a command refuses that has nobody to ask. */
const UNASKED = /"message": ?"((?:[^"\\]|\\.)*?) There is no terminal to ask on\."/

const answerOf = ({ code, stdout, stderr }: Ran, payloads: boolean) => {
  const text = capped(stdout, { payloads })
  if (code === 0) return { content: [{ type: 'text' as const, text }] }
  // What a command found, and that it is not in order.
  return failed([text, capped(stderr, { payloads: true })].filter(part => part !== '').join('\n'))
}

interface Ran {
  code: number | null
  stdout: string
  stderr: string
}

const PROGRAM = join(root, 'bin/tidings.js')

/** Runs a command, which ends if the assistant does not wait for it any more. */
const run = async (args: string[], signal: AbortSignal): Promise<Ran> => {
  const child = spawn(process.execPath, [PROGRAM, ...args], { stdio: ['ignore', 'pipe', 'pipe'], signal })
  const ended = new Promise<number | null>((resolve, reject) => child.once('close', resolve).once('error', reject))
  const [stdout, stderr, code] = await Promise.all([text(child.stdout), text(child.stderr), ended])
  return { code, stdout, stderr }
}
