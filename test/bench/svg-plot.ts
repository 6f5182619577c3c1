// Draws figures as SVG, on a white ground of their own, so that they read on light and dark pages.

export type Series = { name: string; points: { x: number; y: number }[] }
type Axis = { title: string; isLogarithmic?: boolean }

const WIDTH = 720
const HEIGHT = 360
const LEFT = 70
const RIGHT = 24
const TOP = 56
const BOTTOM = 84
const COLOURS = ['#0969da', '#cf222e', '#1a7f37', '#9a6700', '#8250df', '#57606a', '#bf3989', '#0a7d91']

const escaped = (text: string): string => text.replace(/[&<>]/g, sign => `&#${sign.charCodeAt(0)};`)
const short = (value: number): string =>
  value >= 1e6 ? `${value / 1e6} M` : value >= 1e4 ? `${value / 1e3} k` : String(value)

const text = (x: number, y: number, words: string, more = ''): string =>
  `<text x="${x.toFixed(1)}" y="${y.toFixed(1)}"${more}>${escaped(words)}</text>`

/** Round values from 0 to at least `most`, four to eight of them. */
const ticksUpTo = (most: number): number[] => {
  const rough = most / 5
  const power = 10 ** Math.floor(Math.log10(rough))
  const step = [1, 2, 2.5, 5, 10].map(each => each * power).find(each => each >= rough)!
  return Array.from({ length: Math.ceil(most / step) + 1 }, (_, n) => Number((n * step).toPrecision(6)))
}

const sheet = (title: string, parts: string[], height = HEIGHT): string =>
  `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${WIDTH} ${height}" width="${WIDTH}" height="${height}">
<title>${escaped(title)}</title>
<rect x="0.5" y="0.5" width="${WIDTH - 1}" height="${height - 1}" rx="6" fill="#ffffff" stroke="#d0d7de"/>
<g font-family="system-ui,-apple-system,'Segoe UI',sans-serif" font-size="13" fill="#1f2328">
${text(20, 28, title, ' font-size="16" font-weight="600"')}
${parts.join('\n')}
</g>
</svg>
`

/** Names of series or parts with their colours, in rows below the figure. */
const legend = (names: string[], y: number): string => {
  let x = LEFT
  let row = y
  return names
    .map((name, n) => {
      const width = 34 + name.length * 7
      if (x + width > WIDTH - RIGHT) [x, row] = [LEFT, row + 20]
      const at = x
      x += width
      const square = `x="${at}" y="${row - 10}" width="12" height="12" rx="2"`
      const box = `<rect ${square} fill="${COLOURS[n % COLOURS.length]}"/>`
      return box + text(at + 18, row, name)
    })
    .join('\n')
}

/** Lines of points over an axis that may be logarithmic; the other begins at 0. */
export const linePlot = (title: string, x: Axis, y: Axis, series: Series[]): string => {
  const all = series.flatMap(({ points }) => points)
  const xs = [...new Set(all.map(point => point.x))].toSorted((a, b) => a - b)
  const ticks = ticksUpTo(Math.max(...all.map(point => point.y)))
  const scaled = (value: number): number => (x.isLogarithmic ? Math.log10(value) : value)
  const [first, last] = x.isLogarithmic ? [scaled(xs[0]!), scaled(xs.at(-1)!)] : [0, xs.at(-1)!]
  const atX = (value: number) => LEFT + ((scaled(value) - first) / (last - first || 1)) * (WIDTH - LEFT - RIGHT)
  const floor = HEIGHT - BOTTOM
  const atY = (value: number) => floor - (value / ticks.at(-1)!) * (floor - TOP)
  const grid = ticks.map(
    tick =>
      `<path d="M${LEFT} ${atY(tick).toFixed(1)}H${WIDTH - RIGHT}" stroke="#d8dee4"/>` +
      text(LEFT - 8, atY(tick) + 4, short(tick), ' text-anchor="end"'),
  )
  const lines = series.map(({ points }, n) => {
    const colour = COLOURS[n % COLOURS.length]
    const path = points.map((point, k) => `${k === 0 ? 'M' : 'L'}${atX(point.x).toFixed(1)} ${atY(point.y).toFixed(1)}`)
    const dots = points.map(
      point => `<circle cx="${atX(point.x).toFixed(1)}" cy="${atY(point.y).toFixed(1)}" r="3.5" fill="${colour}"/>`,
    )
    return `<path d="${path.join('')}" fill="none" stroke="${colour}" stroke-width="2"/>${dots.join('')}`
  })
  return sheet(title, [
    ...grid,
    ...xs.map(value => text(atX(value), floor + 18, short(value), ' text-anchor="middle"')),
    text((LEFT + WIDTH - RIGHT) / 2, floor + 38, x.title, ' text-anchor="middle" fill="#57606a"'),
    text(20, TOP - 10, y.title, ' fill="#57606a"'),
    ...lines,
    legend(
      series.map(({ name }) => name),
      floor + 64,
    ),
  ])
}

/** Bars side by side from left to right, each made of parts, with the sum behind it. */
export const barPlot = (
  title: string,
  unit: string,
  bars: { name: string; parts: Record<string, number> }[],
): string => {
  const names = [...new Set(bars.flatMap(({ parts }) => Object.keys(parts)))]
  const sums = bars.map(({ parts }) => Object.values(parts).reduce((a, b) => a + b, 0))
  const left = 110
  const scale = (WIDTH - left - 110) / Math.max(...sums)
  const drawn = bars.map(({ name, parts }, n) => {
    const y = TOP + n * 54
    let x = left
    const boxes = names.map((part, k) => {
      const width = (parts[part] ?? 0) * scale
      const at = `x="${x.toFixed(1)}" y="${y}" width="${width.toFixed(1)}" height="34"`
      const box = `<rect ${at} fill="${COLOURS[k % COLOURS.length]}"/>`
      const label =
        width > 34 ? text(x + width / 2, y + 22, parts[part]!.toFixed(2), ' text-anchor="middle" fill="#ffffff"') : ''
      x += width
      return box + label
    })
    const sum = text(x + 8, y + 22, `${sums[n]!.toFixed(2)} ${unit}`, ' font-weight="600"')
    return text(left - 10, y + 22, name, ' text-anchor="end"') + boxes.join('') + sum
  })
  const below = TOP + bars.length * 54 + 20
  return sheet(title, [...drawn, legend(names, below)], below + 40)
}
