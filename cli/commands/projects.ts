import { Command } from '@commander-js/extra-typings'
import { list, listCommand } from '../listing.ts'
import { examples } from '../options.ts'
import { cellText } from '../output/output.ts'
import { idColumn } from '../resources.ts'
import { Session } from '../session.ts'

interface Project {
  id: string
  name: string
  organisation: { id: string; name: string }
}

export const projectsCommand = () =>
  new Command('projects')
    .description('The projects of the organisations that the access token may see.')
    .addCommand(listProjectsCommand())
    .addHelpText('after', examples(['All of them', 'tidings projects list']))

const listProjectsCommand = () =>
  listCommand()
    .summary('list projects')
    .description('Lists projects, by name.')
    .option('--organisation <id>', 'only those of this organisation')
    .option('--name <pattern>', 'only those whose name matches this regular expression, in any case')
    .addHelpText(
      'after',
      examples(
        ['One organisation’s', 'tidings projects list --organisation ID'],
        ['By a part of the name', 'tidings projects list --name harbour'],
      ),
    )
    .action(async (options, command) => {
      const { organisation, name } = options
      await list<Project>(new Session(command), options, {
        resource: 'projects',
        noun: ['project', 'projects'],
        fields: 'id name organisation { id name }',
        view: {
          columns: [
            idColumn,
            { title: 'NAME', shrinks: 'end', cell: row => cellText(row.name) },
            { title: 'ORGANISATION', shrinks: 'end', cell: row => cellText(row.organisation.name) },
          ],
          empty: 'No projects. See what the access token may see with: tidings whoami',
        },
        conditions: [
          ...(organisation ? [{ organisationId: organisation }] : []),
          ...(name ? [{ name: { $regex: `(?i)${name}` } }] : []),
        ],
        sort: [{ name: 'asc' }],
      })
    })
