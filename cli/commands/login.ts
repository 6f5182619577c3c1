import { Command } from '@commander-js/extra-typings'
import { graphql } from '../connection/client.ts'
import { connect, type Settings } from '../connection/connection.ts'
import { profilesPath, readProfiles, saveProfile, tryToSave } from '../connection/profiles.ts'
import { Session } from '../connection/session.ts'
import { CliError, usageError } from '../errors.ts'
import { examples } from '../options.ts'
import { cellText, describeFields } from '../output/output.ts'
import { ask, askSecret, canAsk } from '../output/prompt.ts'
import { askViewer } from '../resources/viewer.ts'

export const loginCommand = () =>
  new Command('login')
    .description(
      'Checks the access token with the server, then saves both as the profile that --profile names ' +
        '(default: default), which is used from then on. It asks for what is not given.',
    )
    .addHelpText(
      'after',
      examples(
        ['Asked for everything', 'tidings login'],
        ['A second server', 'tidings login --profile production --url https://tidings.example.com'],
        [
          'In a script, with the secret from a file',
          'tidings login --profile ci --url https://tidings.example.com --api-key KEY --api-secret - < secret.txt',
        ],
      ),
    )
    .action(async (_options, command) => {
      const session = new Session(command)
      const name = session.profileFlag ?? 'default'
      if (!/^[A-Za-z0-9][\w.-]*$/.test(name)) {
        throw usageError(
          `${JSON.stringify(name)} is not a valid profile name.`,
          'Use letters, digits, “.”, “_” and “-”.',
        )
      }
      const savedUrl = readProfiles().profiles[name]?.url
      tryToSave()
      const connection = connect(await complete(session.newSettings(), savedUrl))
      const viewer = await askViewer(document =>
        session.output.waiting(connection.url.host, graphql(connection, document)),
      ).catch(unlessForbidden)
      const { url, apiKey, apiSecret } = connection
      saveProfile(name, { url: url.href.replace(/\/$/, ''), apiKey, apiSecret }, { current: true })
      session.output.message(`Saved as profile ${name} in ${cellText(profilesPath())}, and used from now on.`)
      session.output.one(
        { profile: name, url: url.href, id: viewer?.id ?? null, name: viewer?.name ?? null },
        colours =>
          describeFields(
            [
              ['Profile', name],
              ['Server', url.href],
              ['Access token', viewer ? cellText(viewer.name) : cellText(apiKey)],
            ],
            colours,
          ),
      )
    })

/** A token without the permission read is still valid, because the server accepted it. */
const unlessForbidden = (error: unknown): undefined => {
  if (!(error instanceof CliError) || error.code !== 'FORBIDDEN') throw error
}

/** Asks for settings that neither flags nor environment give. Throws a CliError without a terminal. */
const complete = async (settings: Settings, savedUrl = 'http://127.0.0.1:4100'): Promise<Settings> => {
  const missing = [
    ...(settings.url ? [] : ['--url']),
    ...(settings.apiKey ? [] : ['--api-key']),
    ...(settings.apiSecret ? [] : ['--api-secret - or --api-secret-file']),
  ]
  if (missing.length > 0 && !canAsk()) {
    throw usageError(
      `There is no terminal to ask on, and this is missing: ${missing.join(', ')}.`,
      'Give it, or set TIDINGS_URL, TIDINGS_API_KEY and TIDINGS_API_SECRET_FILE.',
    )
  }
  const source = 'the prompt'
  return {
    ...settings,
    url: settings.url ?? { value: await ask('Server', savedUrl), source },
    apiKey: settings.apiKey ?? { value: await ask('API key'), source },
    apiSecret: settings.apiSecret ?? { value: await askSecret('API secret (not shown)'), source },
  }
}
