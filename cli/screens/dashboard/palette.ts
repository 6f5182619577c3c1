import pc from 'picocolors'
import type { Colours } from '../../output/output.ts'

/**
 * Colours of a screen. The terminal's own yellow, and often its green, cannot be read on white; these three of the 256
 * have a contrast of about 4 or more on black and on white alike. A word or a sign always says the same as the colour.
 */
export const screenColours = (enabled: boolean): Colours => {
  const plain = pc.createColors(enabled)
  if (!enabled) return plain
  return { ...plain, green: foreground(28), yellow: foreground(130), red: foreground(160) }
}

const foreground = (number: number) => (text: unknown) => `\x1b[38;5;${number}m${text}\x1b[39m`
