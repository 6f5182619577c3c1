import { Command } from '@commander-js/extra-typings'
import { Session } from '../connection/session.ts'
import { dryRunOption, examples } from '../options.ts'
import { cellText } from '../output/output.ts'
import { idColumn, printNamed } from '../resources/cells.ts'
import { idToChange } from '../resources/ids.ts'
import { list, listCommand } from '../resources/listing.ts'

interface User {
  id: string
  name: string
}

/** The GraphQL selection of a user. */
export const userFields = 'id name'

export const usersCommand = () =>
  new Command('users')
    .description('The people who submit and approve reports.')
    .addCommand(listUsersCommand())
    .addCommand(upsertCommand())
    .addHelpText(
      'after',
      examples(['All of them', 'tidings users list'], ['A new one', 'tidings users upsert "Ada Okafor"']),
    )

const listUsersCommand = () =>
  listCommand()
    .summary('list users')
    .description('Lists users, by name.')
    .option('--name <pattern>', 'only those whose name matches this regular expression, in any case')
    .addHelpText(
      'after',
      examples(['All of them', 'tidings users list'], ['By a part of the name', 'tidings users list --name okafor']),
    )
    .action(async (options, command) => {
      await list<User>(new Session(command), options, {
        resource: 'users',
        noun: ['user', 'users'],
        fields: userFields,
        view: {
          columns: [idColumn, { title: 'NAME', shrinks: 'end', cell: row => cellText(row.name) }],
          empty: 'No users. Create one with: tidings users upsert NAME',
        },
        conditions: options.name ? [{ name: { $regex: `(?i)${options.name}` } }] : [],
        sort: [{ name: 'asc' }],
      })
    })

const upsertCommand = () =>
  new Command('upsert')
    .summary('create a user, or rename one')
    .description(
      'Creates a user, or renames the one with the given id. Needs an access token with the permission admin.',
    )
    .argument('<name>', 'the name')
    .option('--id <id>', 'id or name of the user to rename; an unknown id creates it, so that repeating is safe')
    .addOption(dryRunOption())
    .addHelpText(
      'after',
      examples(
        ['A new one', 'tidings users upsert "Ada Okafor"'],
        ['Rename', 'tidings users upsert "Ada Okafor-Lind" --id ID'],
      ),
    )
    .action(async (name, options, command) => {
      const session = new Session(command)
      const { user } = await session.graphql<{ user: User }>(
        'mutation ($id: UUID, $name: String!) { user: upsertUser(id: $id, name: $name) { id name } }',
        { ...(options.id !== undefined && { id: await idToChange(session, 'users', options.id) }), name },
      )
      printNamed(session.output, user)
    })
