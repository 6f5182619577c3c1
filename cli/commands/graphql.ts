import { Command } from '@commander-js/extra-typings'
import { Session } from '../connection/session.ts'
import { usageError } from '../errors.ts'
import { dryRunOption, examples, parseJson, readText } from '../options.ts'
import { safeJson } from '../output/neutralise.ts'

export const graphqlCommand = () =>
  new Command('graphql')
    .description('Sends a GraphQL document, signed, and prints the data of the answer as JSON.')
    .argument('<document>', 'the document itself, @FILE, or - for standard input')
    .option('--variables <json>', 'variables: a JSON object, @FILE, or -')
    .addOption(dryRunOption())
    .addHelpText(
      'after',
      examples(
        ['A query', `tidings graphql '{ organisations { id name } }'`],
        [
          'With variables',
          `tidings graphql 'query ($q: MangoQuery) { users(query: $q) { id } }' --variables '{"q":{"limit":5}}'`,
        ],
        ['From a file', 'tidings graphql @query.graphql --variables @variables.json'],
      ),
    )
    .action(async (document, options, command) => {
      if (document === '-' && options.variables === '-')
        throw usageError('Standard input is named twice.', 'Put one of the two in a file: @FILE')
      const session = new Session(command)
      const text = readText(document, 'The document')
      const variables =
        options.variables === undefined
          ? {}
          : parseJson(readText(options.variables, 'The variables'), 'The value of --variables')
      if (typeof variables !== 'object' || variables === null || Array.isArray(variables))
        throw usageError('The variables are not a JSON object.')
      const data = await session.graphql(text, variables)
      session.output.data(`${safeJson(data, session.output.form === 'ndjson' ? undefined : 2)}\n`)
    })
