import type { DescribedCommand } from '../help/tree.ts'

/** A command as a tool for an assistant. */
export interface Tool {
  name: string
  command: string[]
  description: string
  isChange: boolean
  inputSchema: { type: 'object'; properties: Record<string, object>; required: string[]; additionalProperties: false }
  /** The positional arguments in order. */
  positions: string[]
  options: { name: string; flag: string; takesValue: boolean }[]
}

/** What a token with the permission `read` may do. */
export const READS = [
  ...['why', 'stats', 'query', 'whoami', 'doctor'],
  ...['webhooks list', 'webhooks show', 'deliveries list', 'deliveries show', 'deliveries export'],
  ...['events list', 'events show', 'organisations list', 'projects list', 'users list', 'reports list'],
]

/** What changes something and prints no secret. */
export const CHANGES = [
  ...['webhooks create', 'webhooks update', 'webhooks enable', 'webhooks disable', 'webhooks delete'],
  ...['webhooks ping', 'webhooks recover', 'deliveries redeliver', 'trigger'],
  ...['organisations upsert', 'projects upsert', 'users upsert', 'reports submit', 'reports approve'],
]

/** Resources that only admins read, which are out of bounds for an assistant. */
const ADMINS_ALONE = ['accessTokens', 'auditLog']

/** The server decides on these for every tool; or they read files, or secrets. */
const LEFT_OUT =
  /^--(yes|dry-run|all|after|after-values|event-type|signing|[\w-]*file|profile|url|api-[\w-]+|output|quiet|verbose|color|no-color)$/

/** The tools of a command tree. */
export const toolsOf = (root: DescribedCommand, { allowChanges }: { allowChanges: boolean }): Tool[] => {
  const leaves = leavesOf(root)
  const named = [...READS, ...(allowChanges ? CHANGES : [])]
  return named.flatMap(path => {
    const command = leaves.find(leaf => leaf.command === `${root.command} ${path}`)
    return command === undefined ? [] : [toolOf(command, path, CHANGES.includes(path))]
  })
}

const leavesOf = (command: DescribedCommand): DescribedCommand[] =>
  command.commands.length === 0 ? [command] : command.commands.flatMap(leavesOf)

const toolOf = (command: DescribedCommand, path: string, isChange: boolean): Tool => {
  const options = command.options.flatMap(({ long, takesValue }) =>
    long === null || LEFT_OUT.test(long) || long.startsWith('--no-')
      ? []
      : [{ name: camelCase(long.slice(2)), flag: long, takesValue }],
  )
  const described = new Map(command.options.map(option => [option.long, option]))
  const properties: Record<string, object> = {}
  for (const { name, description, choices, variadic } of command.arguments) {
    const allowed = choices.filter(choice => !ADMINS_ALONE.includes(choice))
    const text = { type: 'string', ...(allowed.length > 0 && { enum: allowed }) }
    properties[name] = { ...(variadic ? { type: 'array', items: text } : text), description }
  }
  for (const { name, flag, takesValue } of options) {
    const { description } = described.get(flag)!
    properties[name] = { type: takesValue ? ['string', 'number'] : 'boolean', description }
  }
  properties.payloads = { type: 'boolean', description: 'with the payloads of events and the texts of answers' }
  return {
    name: path.replaceAll(' ', '_'),
    command: path.split(' '),
    description: [command.summary, command.description]
      .filter((text, index, all) => all.indexOf(text) === index)
      .join('. '),
    isChange,
    inputSchema: {
      type: 'object',
      properties,
      required: command.arguments.filter(({ required }) => required).map(({ name }) => name),
      additionalProperties: false,
    },
    positions: command.arguments.map(({ name }) => name),
    options,
  }
}

const camelCase = (name: string): string => name.replaceAll(/-(\w)/g, (_, letter: string) => letter.toUpperCase())

/** Rows of a list, unless an assistant asks for fewer. */
const ROWS = 50

/**
 * The words of a call whose arguments are as the tool's schema says. Values stand behind `=` or `--`, so that none is
 * taken for an option.
 *
 * @throws TypeError for a value that a command would read from elsewhere
 */
export const wordsOf = (tool: Tool, given: Record<string, unknown>): string[] => {
  const isCounting = given.count === true || given.by !== undefined
  const isCapped = !isCounting && !tool.isChange && tool.options.some(({ flag }) => flag === '--limit')
  const asked = isCapped ? { ...given, limit: Math.min(Number(given.limit ?? ROWS), ROWS) } : given
  const options = tool.options.flatMap(({ name, flag, takesValue }) => {
    const value = asked[name]
    if (value === undefined || value === false) return []
    return takesValue ? [`${flag}=${textOf(name, value)}`] : [flag]
  })
  const positions = tool.positions.flatMap(name => [asked[name] ?? []].flat().map(value => textOf(name, value)))
  return [...tool.command, ...options, '--output=json', '--', ...positions]
}

const textOf = (name: string, value: unknown): string => {
  const text = String(value)
  // Standard input is the assistant's own, and files are this machine's.
  if (text === '-' || text.startsWith('@')) throw new TypeError(`${name} is neither a file nor standard input.`)
  return text
}

/** What is long, and may be personal. */
const PAYLOADS = new Set(['payload', 'response', 'body', 'responseHeaders', 'requestHeaders'])
const LONGEST = 40_000

/** The result of a command as an assistant gets it: without payloads, and not longer than it can read. */
export const capped = (stdout: string, { payloads }: { payloads: boolean }): string => {
  const parsed = parse(stdout)
  if (parsed === undefined) return cut(stdout)
  const shown = payloads ? parsed : withoutPayloads(parsed)
  if (!Array.isArray(shown)) return cut(JSON.stringify(shown))
  const more = shown.length >= ROWS ? [`The first ${ROWS} rows; narrow the question to see others.`] : []
  return [cut(JSON.stringify(shown.slice(0, ROWS))), ...more].join('\n')
}

const parse = (text: string): unknown => {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}

const withoutPayloads = (value: unknown): unknown => {
  if (Array.isArray(value)) return value.map(withoutPayloads)
  if (typeof value !== 'object' || value === null) return value
  const kept = Object.entries(value).filter(([name]) => !PAYLOADS.has(name))
  return Object.fromEntries(kept.map(([name, inner]) => [name, withoutPayloads(inner)]))
}

const cut = (text: string): string =>
  text.length <= LONGEST ? text : `${text.slice(0, LONGEST)}\n… cut after ${LONGEST} characters; ask for less.`
