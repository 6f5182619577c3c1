import { Command } from '@commander-js/extra-typings'
import { noSuchProfile, readProfiles, removeProfile, useProfile } from '../connection/profiles.ts'
import { Session } from '../connection/session.ts'
import { examples, yesOption } from '../options.ts'
import { cellText } from '../output/output.ts'
import { confirm } from '../output/prompt.ts'

export const profilesCommand = () =>
  new Command('profiles')
    .description('Saved servers with their access tokens. Without a subcommand it lists them; tidings login saves one.')
    .addCommand(listProfilesCommand(), { isDefault: true })
    .addCommand(useCommand())
    .addCommand(removeCommand())
    .addHelpText(
      'after',
      examples(
        ['Which are there?', 'tidings profiles'],
        ['Use another one from now on', 'tidings profiles use production'],
      ),
    )

const listProfilesCommand = () =>
  new Command('list')
    .summary('list saved profiles')
    .addHelpText('after', examples(['Which servers are saved here?', 'tidings profiles list']))
    .action((_options, command) => {
      const { output } = new Session(command)
      const { profiles, current = 'sandbox' } = readProfiles()
      const rows = Object.entries(profiles).map(([name, { url, apiKey }]) => ({
        id: name,
        name,
        url,
        apiKey,
        current: name === current,
      }))
      output.list(rows, {
        columns: [
          { title: '', cell: row => (row.current ? '*' : ' ') },
          { title: 'NAME', cell: row => cellText(row.name) },
          { title: 'URL', shrinks: 'url', cell: row => cellText(row.url) },
          { title: 'API KEY', cell: row => cellText(row.apiKey) },
        ],
        empty: 'No profiles. Save one with: tidings login. Or start a sandbox, which saves its own, with: npm start',
      })
    })

const useCommand = () =>
  new Command('use')
    .summary('use a profile from now on')
    .argument('<name>', 'the profile’s name')
    .addHelpText('after', examples(['Back to the sandbox', 'tidings profiles use sandbox']))
    .action((name, _options, command) => {
      useProfile(name)
      const { output } = new Session(command)
      output.one({ id: name, current: true }, () => '')
      output.message(`Profile ${cellText(name)} is used from now on.`)
    })

const removeCommand = () =>
  new Command('remove')
    .summary('forget a profile and its secret')
    .argument('<name>', 'the profile’s name')
    .addOption(yesOption())
    .addHelpText('after', examples(['Without a question', 'tidings profiles remove old --yes']))
    .action(async (name, _options, command) => {
      const session = new Session(command)
      const stored = readProfiles()
      if (!Object.hasOwn(stored.profiles, name)) throw noSuchProfile(name, stored)
      await confirm(`Forget profile ${cellText(name)} and its secret?`, session)
      removeProfile(name)
      session.output.one({ id: name, removed: true }, () => '')
      session.output.message(`Profile ${cellText(name)} is forgotten. Its access token stays valid on the server.`)
    })
