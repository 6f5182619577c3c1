/** What npm was asked for, if it was npm that started this. */
const { npm_command: npmCommand, npm_lifecycle_event: npmEvent } = process.env
const byNpx = npmEvent === 'npx' && npmCommand === 'exec'

/** How this program was started, as it is to be typed again. Whoever runs `npm start` has it in a checkout. */
export const program = byNpx || npmEvent === 'start' ? 'npx tidings' : 'tidings'

/** Installed as a package there is no `npm start`. */
const isInstalled = /[\\/]node_modules[\\/]/.test(import.meta.url)

const COMMAND = /(?<![\w./@-])(?:npx )?tidings (?=[a-z…-])/g

/** A text that names commands, with the program named as it was started. */
export const asStarted = (text: string): string => {
  const named = program === 'tidings' ? text : text.replace(COMMAND, `${program} `)
  return isInstalled ? named.replaceAll('npm start', `${program} server start --sandbox`) : named
}
