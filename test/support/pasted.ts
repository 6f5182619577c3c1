import { globSync, readFileSync } from 'node:fs'
import path from 'node:path'
import { fileURLToPath } from 'node:url'

const repository = fileURLToPath(new URL('../..', import.meta.url))

/** Every page that people read, by its path in the repository. */
export const allPages = globSync(['*.md', 'docs/**/*.md', 'receiver/README.md'], { cwd: repository })
  .filter(page => page !== 'CHANGELOG.md')
  .sort()

export const pageText = (page: string): string => readFileSync(path.join(repository, page), 'utf8')

/** The blocks of a page that are pasted into a shell, without the indentation of a list. */
export const pastesOf = (page: string): string[] =>
  [...pageText(page).matchAll(/^( *)```sh\n(.*?)^ *```$/gms)].map(([, indent = '', lines = '']) =>
    lines.replaceAll(new RegExp(`^${indent}`, 'gm'), ''),
  )

/** Programs of the pages that no test machine has, each with the reason. A line that runs one is left out. */
export const NOT_HERE: Record<string, string> = {
  chronyc: 'asks the clock daemon of a machine',
  cosign: 'signs what is in a registry',
  git: 'clones from an address that the reader knows',
  install: 'writes to the machine as root',
  kubectl: 'needs a cluster',
  ln: 'names a release for the machine, as root',
  mysql: 'needs the server of an installation',
  mysqlbinlog: 'needs the server of an installation',
  mysqldump: 'needs the server of an installation',
  'npm ci': 'installs and packs a clone, as test/scripts/tarballs.test.ts does',
  'npm install': 'fetches packages; of packed files it is run by test/scripts/tarballs.test.ts',
  'npm sbom': 'lists what a release contains',
  podman: 'builds and runs containers',
  systemctl: 'needs systemd',
  top: 'shows a screen until it is left',
}

/** Blocks that only run on the reader's machine, by a word in them, each with the reason. */
export const BLOCKS_NOT_HERE: Record<string, string> = {
  '/etc/tidings': 'writes to /etc as root, and needs a MySQL server',
  'npm run bench': 'measures for minutes',
  'npm test': 'is this test',
  'npm start': 'is run by test/scripts/bin.test.ts and test/sandbox/sandbox.test.ts',
}

/** The pages whose commands test/cli/readme.test.ts and test/scripts/runbooks.test.ts run. */
export const RUN_WITH_SANDBOX = [
  'README.md',
  'docs/integrators.md',
  'docs/support.md',
  'docs/signing.md',
  'docs/operations.md',
]
export const RUN_WITH_SERVER = [
  ...allPages.filter(page => page.startsWith('docs/runbooks/') && !/(README|key-known)\.md$/.test(page)),
  'docs/operations.md',
  // Last, since it takes the signing key out of use.
  'docs/runbooks/key-known.md',
]

/** The part of a block that can run here: without the lines whose program is not here. */
export const runnable = (paste: string): string => {
  if (Object.keys(BLOCKS_NOT_HERE).some(word => paste.includes(word))) return ''
  const commands = paste.split(/(?<!\\)\n(?=\S)/)
  return commands.filter(command => !programNotHere(command)).join('\n')
}

/** The program of a command or a part of it that is not here. */
export const programNotHere = (command: string): string | undefined =>
  Object.keys(NOT_HERE).find(program => new RegExp(`(^|[;|&(] *|do )${program} `, 'm').test(command))
