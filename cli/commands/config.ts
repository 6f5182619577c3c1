import { Command } from '@commander-js/extra-typings'
import { profilesPath } from '../connection/profiles.ts'
import { Session } from '../connection/session.ts'
import { examples } from '../options.ts'
import { cellText, describeFields } from '../output/output.ts'

export const configCommand = () =>
  new Command('config')
    .description('Shows each setting of the connection and where it comes from. Secrets are not shown.')
    .addHelpText(
      'after',
      examples(
        ['Which server would be asked, and why?', 'tidings config'],
        ['With another profile', 'tidings config --profile production'],
      ),
    )
    .action((_options, command) => {
      const { settings, output } = new Session(command)
      const { profile, url, apiKey, apiSecret } = settings
      const hidden = apiSecret && { value: '(set)', source: apiSecret.source }
      const shown = { profile, url, apiKey, apiSecret: hidden }
      const none = { value: null, source: null }
      const data = Object.fromEntries(Object.entries(shown).map(([name, setting]) => [name, setting ?? none]))
      output.one({ ...data, profilesFile: profilesPath() }, colours => {
        const line = (setting: typeof hidden) =>
          setting ? `${cellText(setting.value)}  ${colours.dim(`from ${cellText(setting.source)}`)}` : '–'
        return describeFields(
          [
            ['Profile', line(profile)],
            ['URL', line(url)],
            ['API key', line(apiKey)],
            ['API secret', line(hidden)],
            ['Profiles file', cellText(profilesPath())],
          ],
          colours,
        )
      })
      if (settings.profilesFault) output.warning(`${settings.profilesFault.message} ${settings.profilesFault.hint}`)
      else if (!url) output.message('Nothing is set. Log in with: tidings login. Or start a sandbox with: npm start')
    })
