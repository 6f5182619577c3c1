import { Command } from '@commander-js/extra-typings'
import { list, listCommand } from '../listing.ts'
import { examples } from '../options.ts'
import { cellText } from '../output/output.ts'
import { idColumn } from '../resources.ts'
import { Session } from '../session.ts'

interface Organisation {
  id: string
  name: string
}

export const organisationsCommand = () =>
  new Command('organisations')
    .description('The organisations that the access token may see.')
    .addCommand(listOrganisationsCommand())
    .addHelpText('after', examples(['All of them', 'tidings organisations list']))

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
        fields: 'id name',
        view: {
          columns: [idColumn, { title: 'NAME', shrinks: 'end', cell: row => cellText(row.name) }],
          empty: 'No organisations. See what the access token may see with: tidings whoami',
        },
        conditions: options.name ? [{ name: { $regex: `(?i)${options.name}` } }] : [],
        sort: [{ name: 'asc' }],
      })
    })
