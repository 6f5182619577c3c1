import { Command } from '@commander-js/extra-typings'
import { Session } from '../connection/session.ts'
import { dryRunOption, examples } from '../options.ts'
import { cellText, describeFields } from '../output/output.ts'
import { idColumn } from '../resources/cells.ts'
import { idToChange, resolveId } from '../resources/ids.ts'
import { list, listCommand } from '../resources/listing.ts'

interface Project {
  id: string
  name: string
  organisation: { id: string; name: string }
}

/** The GraphQL selection of a project. */
export const projectFields = 'id name organisation { id name }'

export const projectsCommand = () =>
  new Command('projects')
    .description('The projects of the organisations that the access token may see.')
    .addCommand(listProjectsCommand())
    .addCommand(upsertCommand())
    .addHelpText(
      'after',
      examples(
        ['All of them', 'tidings projects list'],
        ['A new one', 'tidings projects upsert "North Quay" --organisation ID'],
      ),
    )

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
      const session = new Session(command)
      const { name } = options
      const organisation = await resolveId(session, 'organisations', options.organisation)
      await list<Project>(session, options, {
        resource: 'projects',
        noun: ['project', 'projects'],
        fields: projectFields,
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

const upsertCommand = () =>
  new Command('upsert')
    .summary('create a project, or change one')
    .description(
      'Creates a project, or changes name and organisation of the one with the given id. ' +
        'Needs an access token with the permission admin.',
    )
    .argument('<name>', 'the name')
    .requiredOption('--organisation <id>', 'the organisation that it belongs to')
    .option('--id <id>', 'id or name of the project to change; an unknown id creates it, so that repeating is safe')
    .addOption(dryRunOption())
    .addHelpText(
      'after',
      examples(
        ['A new one', 'tidings projects upsert "North Quay" --organisation ID'],
        ['Rename', 'tidings projects upsert "North Quay II" --organisation ID --id ID'],
      ),
    )
    .action(async (name, options, command) => {
      const session = new Session(command)
      const { project } = await session.graphql<{ project: Project }>(
        `mutation ($id: UUID, $organisationId: UUID!, $name: String!) {
          project: upsertProject(id: $id, organisationId: $organisationId, name: $name) {
            id name organisation { id name }
          }
        }`,
        {
          ...(options.id !== undefined && { id: await idToChange(session, 'projects', options.id) }),
          organisationId: await resolveId(session, 'organisations', options.organisation),
          name,
        },
      )
      session.output.one(project, colours =>
        describeFields(
          [
            ['ID', cellText(project.id)],
            ['Name', cellText(project.name)],
            ['Organisation', `${cellText(project.organisation.name)}  ${cellText(project.organisation.id)}`],
          ],
          colours,
        ),
      )
    })
