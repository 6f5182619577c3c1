import { realpathSync } from 'node:fs'
import { Argument, Command } from '@commander-js/extra-typings'
import { completionScript, shells } from '../completion/scripts.ts'
import { examples } from '../options.ts'
import { isByNpx } from '../output/program.ts'

/** What a shell starts in any folder: npx would look for a package of that name in the registry. */
const tidings = isByNpx ? realpathSync(process.argv[1]!) : 'tidings'

export const completionCommand = () =>
  new Command('completion')
    .description(
      'Prints the script that makes a shell complete commands, options, event types, profiles, ' +
        'fields, topics of help, and the names and ids of webhooks, organisations and projects. ' +
        'It completes them after npx tidings too.',
    )
    .addArgument(new Argument('<shell>', 'the shell').choices(shells))
    .addHelpText(
      'after',
      examples(
        ['bash, from now on', `echo 'source <(${tidings} completion bash)' >> ~/.bashrc`],
        ['zsh, from now on', `echo 'source <(${tidings} completion zsh)' >> ~/.zshrc`],
        [
          'fish, from now on',
          `mkdir -p ~/.config/fish/completions && ${tidings} completion fish > ~/.config/fish/completions/tidings.fish`,
        ],
        ['PowerShell, from now on', `${tidings} completion powershell >> $PROFILE`],
      ),
    )
    .action(shell => {
      process.stdout.write(completionScript(shell))
    })
