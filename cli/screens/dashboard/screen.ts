import { once } from 'node:events'
import { Box, type Key, render, Text, useApp, useInput, usePaste, useWindowSize } from 'ink'
import { createElement as h, useLayoutEffect, useSyncExternalStore } from 'react'
import type { Colours } from '../../output/output.ts'
import type { Dashboard } from './dashboard.ts'
import { deliveriesPane, shownDeliveries } from './deliveries-pane.ts'
import { detailsLines, detailsPane } from './details-pane.ts'
import { footerLines, headerLine, helpLines, noticeLines, type Place } from './frame.ts'
import { LEAST, layoutOf } from './layout.ts'
import { filledUp } from './lines.ts'
import { webhooksPane } from './webhooks-pane.ts'

interface ScreenProps {
  dashboard: Dashboard
  place: Place
  colours: Colours
}

/** The most frames a second. Polls change the screen at most once a second, keys at once. */
const MOST_FRAMES = 15

/** Shows the dashboard until it is quit, and restores the terminal, however it ends. */
export const showDashboard = async (props: ScreenProps): Promise<void> => {
  const { dashboard } = props
  // The alternate screen keeps the cursor's column, which is not the first where the command was typed ahead of the
  // shell's prompt; ink's lines are as wide as the screen, and the first would wrap.
  process.stdout.write('\r')
  const screen = render(h(Screen, props), {
    alternateScreen: true,
    // It is known to be a terminal; otherwise ink checks for a CI environment.
    interactive: true,
    exitOnCtrlC: false,
    incrementalRendering: true,
    maxFps: MOST_FRAMES,
  })
  const crashed = new Promise<never>((_, reject) => {
    process.once('uncaughtException', reject)
    process.once('unhandledRejection', reject)
  })
  try {
    dashboard.start(() => screen.unmount())
    await Promise.race([screen.waitUntilExit(), crashed])
  } finally {
    dashboard.stop()
    screen.unmount()
  }
}

const Screen = ({ dashboard, place, colours }: ScreenProps) => {
  const state = useSyncExternalStore(dashboard.subscribe, dashboard.read)
  const size = useWindowSize()
  const { suspendTerminal } = useApp()
  useInput((input, key) => {
    if (key.ctrl && input === 'z' && process.platform !== 'win32') return void suspendTerminal(putAside)
    for (const name of keyNames(input, key)) dashboard.press(name)
  })
  usePaste(text => dashboard.paste(text))

  const { columns, rows } = size
  const notices = noticeLines(state, columns, colours)
  const bottom = [...notices, ...footerLines(state, columns, colours)]
  const layout = layoutOf(size, state, bottom.length)
  const details = detailsLines(state, layout, colours)
  const { wide, webhookRows, deliveryRows, detailsRows } = layout
  useLayoutEffect(() => {
    const sizes = { webhookRows, deliveryRows, detailsRows, detailsLines: details.length, wide }
    dashboard.drawn(sizes, shownDeliveries(state, layout))
  })

  if (columns < LEAST.columns || rows < LEAST.rows) {
    const needed = `${LEAST.columns} columns and ${LEAST.rows} rows`
    const text = `This needs ${needed}; there are ${columns} and ${rows}. q quits.`
    return h(Text, null, text)
  }
  const body =
    state.mode.kind === 'help'
      ? lines(filledUp(helpLines(state, columns, colours), rows - 1 - bottom.length), columns)
      : h(
          Box,
          { columnGap: 2 },
          layout.lists &&
            lines(
              [...webhooksPane(state, layout, colours), ...deliveriesPane(state, layout, colours)],
              layout.listsWidth,
            ),
          layout.details && lines(detailsPane(state, details, layout, colours), layout.detailsWidth),
        )
  return h(
    Box,
    { flexDirection: 'column', width: columns, height: rows, overflow: 'hidden' },
    lines([headerLine(state, place, columns, colours)], columns),
    body,
    lines(bottom, columns),
  )
}

/** Lines of the terminal, none of which wraps. */
const lines = (texts: string[], width: number) =>
  h(
    Box,
    { flexDirection: 'column', width, flexShrink: 0 },
    ...texts.map((text, index) => h(Box, { key: index, height: 1, width }, h(Text, { wrap: 'truncate' }, text || ' '))),
  )

/** Job control: stops this process group until the shell continues it. */
const putAside = async (): Promise<void> => {
  const goesOn = once(process, 'SIGCONT')
  process.kill(0, 'SIGTSTP')
  await goesOn
}

/** The names of keys for `press`. Several keys typed at once arrive as one input. */
const keyNames = (input: string, key: Key): string[] => {
  if (key.tab) return [key.shift ? 'shift-tab' : 'tab']
  const special = SPECIAL.find(([flag]) => key[flag])
  if (special) return [special[1]]
  if (key.ctrl) return [`ctrl-${input}`]
  const typed = Array.from(input, nameOf)
  // A character right after esc looks as if typed with alt, which has no meaning here.
  return key.meta ? ['esc', ...typed] : typed
}

/** ink does not recognise a key among other characters. */
const nameOf = (character: string): string => {
  const code = character.charCodeAt(0)
  const letter = String.fromCharCode(code + 0x60)
  return CONTROL[character] ?? (code > 0 && code <= 26 ? `ctrl-${letter}` : character)
}

const CONTROL: Record<string, string> = {
  '\r': 'enter',
  '\n': 'enter',
  '\t': 'tab',
  '\x1b': 'esc',
  '\x7f': 'backspace',
  '\b': 'backspace',
}

const SPECIAL = [
  ['upArrow', 'up'],
  ['downArrow', 'down'],
  ['leftArrow', 'left'],
  ['rightArrow', 'right'],
  ['pageUp', 'pageup'],
  ['pageDown', 'pagedown'],
  ['home', 'home'],
  ['end', 'end'],
  ['return', 'enter'],
  ['escape', 'esc'],
  ['backspace', 'backspace'],
  ['delete', 'backspace'],
] as const
