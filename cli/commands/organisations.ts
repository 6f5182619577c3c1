import { Command } from '@commander-js/extra-typings'
import { Session } from '../connection/session.ts'
import { dryRunOption, examples } from '../options.ts'
import { cellText } from '../output/output.ts'
import { idColumn, printNamed } from '../resources/cells.ts'
import { idToChange } from '../resources/ids.ts'
import { list, listCommand } from '../resources/listing.ts'

interface Organisation {
  id: string
  name: string
}

/** The GraphQL selection of an organisation. */
export const organisationFields = 'id name'

export const organisationsCommand = () =>
  new Command('organisations')
    .description('The organisations that the access token may see.')
    .addCommand(listOrganisationsCommand())
    .addCommand(upsertCommand())
    .addHelpText(
      'after',
      examples(
        ['All of them', 'tidings organisations list'],
        ['A new one', 'tidings organisations upsert "Acme Harbours"'],
      ),
    )

const listOrganisationsCommand = () =>
  listCommand()
    .summary('list organisations')
    .description('Lists the organisations that the access token may see, by name.')
    .option('--name <pattern>', 'only those whose name matches this regular expression, in any case')
    .addHelpText(
      'after',
      examples(
        ['All of them', 'tidings organisations list'],
        ['By a part of the name', 'tidings organisations list --name acme'],
      ),
    )
    .action(async (options, command) => {
      await list<Organisation>(new Session(command), options, {
        resource: 'organisations',
        noun: ['organisation', 'organisations'],
        fields: organisationFields,
        view: {
          columns: [idColumn, { title: 'NAME', shrinks: 'end', cell: row => cellText(row.name) }],
          empty: 'No organisations. See what the access token may see with: tidings whoami',
        },
        conditions: options.name ? [{ name: { $regex: `(?i)${options.name}` } }] : [],
        sort: [{ name: 'asc' }],
      })
    })

const upsertCommand = () =>
  new Command('upsert')
    .summary('create an organisation, or rename one')
    .description(
      'Creates an organisation, or renames the one with the given id. Needs an access token with the ' +
        'permission admin.',
    )
    .argument('<name>', 'the name')
    .option(
      '--id <id>',
      'id or name of the organisation to rename; an unknown id creates it, so that repeating is safe',
    )
    .addOption(dryRunOption())
    .addHelpText(
      'after',
      examples(
        ['A new one', 'tidings organisations upsert "Acme Harbours"'],
        ['Rename', 'tidings organisations upsert "Acme Ports" --id "Acme Harbours"'],
      ),
    )
    .action(async (name, options, command) => {
      const session = new Session(command)
      const { organisation } = await session.graphql<{ organisation: Organisation }>(
        'mutation ($id: UUID, $name: String!) { organisation: upsertOrganisation(id: $id, name: $name) { id name } }',
        { ...(options.id !== undefined && { id: await idToChange(session, 'organisations', options.id) }), name },
      )
      printNamed(session.output, organisation)
    })
