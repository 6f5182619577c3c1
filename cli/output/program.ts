/** The npm command, if npm started this program. */
const { npm_command: npmCommand, npm_lifecycle_event: npmEvent } = process.env

/** Whether it is typed with npx. `npm start` means a checkout. */
export const isByNpx = npmEvent === 'start' || (npmEvent === 'npx' && npmCommand === 'exec')

/** How this program was started, in the form to type again. */
export const program = isByNpx ? 'npx tidings' : 'tidings'

/** An installed package has no `npm start`. */
const isInstalled = /[\\/]node_modules[\\/]/.test(import.meta.url)

/** What gives bash, zsh and fish `tidings` without npx, in the folder of the checkout or of what has the package. */
export const pathLine = (isPackage = isInstalled): string =>
  `export PATH="$PWD/${isPackage ? 'node_modules/.bin' : 'bin'}:$PATH"`

/** At the beginning of a text, after a colour, or after what is no part of a longer word. */
// biome-ignore lint/suspicious/noControlCharactersInRegex: a colour begins with one
const COMMAND = /(?<=^|\u001b\[[\d;]*m|[^\w./@-])(?:npx )?tidings (?=[a-z…-])/gm

/** A text with commands, in which the program is named as it was started. */
export const asStarted = (text: string): string => {
  const named = program === 'tidings' ? text : text.replace(COMMAND, `${program} `)
  return isInstalled ? named.replaceAll('npm start', `${program} server start --sandbox`) : named
}
