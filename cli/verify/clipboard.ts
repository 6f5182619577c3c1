import { CliError, exitCodes } from '../errors.ts'
import { neutralise } from '../output/neutralise.ts'

/** The clipboard's text. Throws a CliError where there is no clipboard, or nothing to read it with. */
export const readClipboard = async (): Promise<string> => {
  // Its programs differ by system and display; see the package.
  const { default: clipboard } = await import('clipboardy')
  try {
    return await clipboard.read()
  } catch (error) {
    const [why = ''] = (error as Error).message.split('\n')
    throw new CliError(
      exitCodes.failed,
      'CLIPBOARD_UNREADABLE',
      `The clipboard cannot be read: ${neutralise(why)}`,
      'Paste it into this instead: tidings verify -',
    )
  }
}
