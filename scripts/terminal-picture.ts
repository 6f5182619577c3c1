// Draws a terminal's screen as an SVG.

type Look = { colour?: string; background?: string; bold?: boolean; dim?: boolean; reversed?: boolean; line?: boolean }
type Run = { column: number; text: string; look: Look }

const CELL_WIDTH = 8.4
const CELL_HEIGHT = 18
const MARGIN = 14
const BAR_HEIGHT = 30
const GROUND = '#0d1117'
const TEXT = '#e6edf3'
const FONTS = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"
/** The sixteen colours of a terminal: eight, and the same eight bright. */
const COLOURS = [
  ...['#484f58', '#ff7b72', '#3fb950', '#d29922', '#58a6ff', '#bc8cff', '#39c5cf', '#b1bac4'],
  ...['#6e7681', '#ffa198', '#56d364', '#e3b341', '#79c0ff', '#d2a8ff', '#56d4dd', '#ffffff'],
]
/** The three of 256 that the screens choose for white as well, each a little lighter here. */
const READABLE: Record<number, string> = { 28: '#3fb950', 130: '#d29922', 160: '#ff7b72' }

/** A colour of the 256, as xterm has them: sixteen, a cube of 6 × 6 × 6, and 24 greys. */
const indexed = (number: number): string => {
  if (READABLE[number]) return READABLE[number]
  if (number < 16) return COLOURS[number]!
  const hex = (...parts: number[]) => `#${parts.map(part => part.toString(16).padStart(2, '0')).join('')}`
  if (number >= 232) return hex(...Array<number>(3).fill(8 + 10 * (number - 232)))
  const level = (step: number) => (step === 0 ? 0 : 55 + 40 * step)
  const cube = number - 16
  return hex(level(Math.floor(cube / 36)), level(Math.floor(cube / 6) % 6), level(cube % 6))
}

/** The look after an SGR sequence (ECMA-48 section 8.3.117). */
const lookAfter = (before: Look, codes: number[]): Look => {
  let look = { ...before }
  while (codes.length > 0) {
    const code = codes.shift()!
    const part = code === 38 ? 'colour' : 'background'
    if (code === 0) look = {}
    else if (code === 1) look.bold = true
    else if (code === 2) look.dim = true
    else if (code === 4) look.line = true
    else if (code === 7) look.reversed = true
    else if (code === 22) look = { ...look, bold: false, dim: false }
    else if (code === 24) look.line = false
    else if (code === 27) look.reversed = false
    else if (code === 39) delete look.colour
    else if (code === 49) delete look.background
    else if (code >= 30 && code <= 37) look.colour = COLOURS[code - 30]!
    else if (code >= 40 && code <= 47) look.background = COLOURS[code - 40]!
    else if (code >= 90 && code <= 97) look.colour = COLOURS[code - 82]!
    else if (code >= 100 && code <= 107) look.background = COLOURS[code - 92]!
    else if ((code === 38 || code === 48) && codes[0] === 5) look[part] = indexed(codes.splice(0, 2)[1]!)
    else throw new Error(`The picture does not know the terminal code ${code}.`)
  }
  return look
}

/** A run without its wide spaces, which SVG would fold: each piece says its column. What has a ground keeps them. */
const piecesOf = (text: string, column: number, look: Look): Run[] =>
  look.background || look.reversed
    ? [{ column, text, look }]
    : [...text.matchAll(/\S+(?: \S+)*/g)].map(found => ({
        column: column + [...text.slice(0, found.index)].length,
        text: found[0],
        look,
      }))

/** The lines of a screen as runs of one look each. */
const runsOf = (screen: string): Run[][] => {
  let look: Look = {}
  return screen.split('\n').map(line => {
    const runs: Run[] = []
    let column = 0
    for (const part of line.split(SGR)) {
      if (part.startsWith(ESCAPE)) look = lookAfter(look, part.slice(2, -1).split(';').map(Number))
      else if (part) {
        runs.push(...piecesOf(part, column, look))
        column += [...part].length
      }
    }
    return runs
  })
}

const ESCAPE = '\u001b'
const SGR = new RegExp(`(${ESCAPE}\\[[\\d;]*m)`)

const escaped = (text: string): string => text.replace(/[&<>]/g, sign => `&#${sign.charCodeAt(0)};`)

const drawn = ({ column, text, look }: Run, row: number): string => {
  const [ink, paper] = look.reversed
    ? [look.background ?? GROUND, look.colour ?? TEXT]
    : [look.colour ?? TEXT, look.background]
  const x = (MARGIN + column * CELL_WIDTH).toFixed(1)
  const y = BAR_HEIGHT + MARGIN + row * CELL_HEIGHT
  const width = ([...text].length * CELL_WIDTH).toFixed(1)
  const box = paper ? `<rect x="${x}" y="${y}" width="${width}" height="${CELL_HEIGHT}" fill="${paper}"/>` : ''
  if (!text.trim()) return box
  const style = [
    ink === TEXT ? '' : ` fill="${ink}"`,
    look.bold ? ' font-weight="bold"' : '',
    look.dim ? ' opacity="0.65"' : '',
    look.line ? ' text-decoration="underline"' : '',
  ].join('')
  return `${box}<text x="${x}" y="${y + 13}" textLength="${width}"${style}>${escaped(text)}</text>`
}

/**
 * A screen as an SVG: a window of its own dark ground, which reads on a light page and on a dark one.
 *
 * @param screen lines with colour codes (SGR), as a terminal emulator captures them
 * @param title the text of the window's bar, and what a screen reader says first
 * @throws Error for a terminal code that it does not know
 */
export const pictureOf = (screen: string, title: string, columns: number): string => {
  const lines = runsOf(screen.trimEnd())
  const width = Math.ceil(2 * MARGIN + columns * CELL_WIDTH)
  const height = BAR_HEIGHT + 2 * MARGIN + lines.length * CELL_HEIGHT
  const buttons = ['#ff5f57', '#febc2e', '#28c840'].map(
    (colour, n) => `<circle cx="${20 + n * 18}" cy="16" r="5.5" fill="${colour}"/>`,
  )
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" width="${width}" height="${height}">
<title>${escaped(title)}</title>
<rect x="0.5" y="0.5" width="${width - 1}" height="${height - 1}" rx="8" fill="${GROUND}" stroke="#30363d"/>
${buttons.join('')}
<g font-family="${FONTS}" font-size="14" fill="${TEXT}" style="white-space:pre">
<text x="${width / 2}" y="21" text-anchor="middle" font-size="13" opacity="0.65">${escaped(title)}</text>
${lines
  .map((runs, row) => runs.map(run => drawn(run, row)).join(''))
  .filter(Boolean)
  .join('\n')}
</g>
</svg>
`
}
