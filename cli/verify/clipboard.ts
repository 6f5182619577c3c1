import { execFile } from 'node:child_process'
import { promisify } from 'node:util'
import { CliError, exitCodes } from '../errors.ts'
import { neutralise } from '../output/neutralise.ts'

type Program = [name: string, ...args: string[]]

const POWERSHELL: Program = [
  'powershell.exe',
  '-NoProfile',
  '-NonInteractive',
  '-Command',
  '[Console]::OutputEncoding = [Text.Encoding]::UTF8; Get-Clipboard -Raw',
]
const WAYLAND: Program = ['wl-paste', '--no-newline', '--type', 'text/plain']
const X11: Program[] = [
  ['xsel', '--clipboard', '--output'],
  ['xclip', '-selection', 'clipboard', '-out'],
]

/** The programs that print the clipboard on this system; the first that works is used. The last is for WSL. */
const programs = (): Program[] => {
  if (process.platform === 'darwin') return [['pbpaste']]
  if (process.platform === 'win32') return [POWERSHELL]
  if (process.platform === 'android') return [['termux-clipboard-get']]
  return [...(process.env.WAYLAND_DISPLAY ? [WAYLAND] : []), ...X11, POWERSHELL]
}

/** The time limit, for a program that waits for a display. */
const WAIT_MS = 10_000
const LONGEST = 16 * 1024 * 1024

/** The clipboard's text. Throws a CliError if there is no clipboard, or no program to read it. */
export const readClipboard = async (): Promise<string> => {
  const tried = programs()
  let why = `there is no ${tried.map(([name]) => name).join(', nor ')} here`
  for (const [name, ...args] of tried) {
    try {
      const { stdout } = await promisify(execFile)(name, args, { timeout: WAIT_MS, maxBuffer: LONGEST })
      return stdout
    } catch (error) {
      const { code, message } = error as NodeJS.ErrnoException
      if (code !== 'ENOENT') why = message
    }
  }
  throw new CliError(
    exitCodes.failed,
    'CLIPBOARD_UNREADABLE',
    `The clipboard cannot be read: ${neutralise(why.split('\n')[0]!)}`,
    'Paste it into this instead: tidings verify -',
  )
}
