import { type Colours, cellText } from '../../output/output.ts'
import { asStarted } from '../../output/program.ts'
import { displayWidth } from '../../output/table.ts'
import { duration, timeOfDay, zoneAt, zoneName } from '../../output/time.ts'
import { questionOf, shownWebhook } from './actions.ts'
import { bothEnds, wrapLine } from './lines.ts'
import { listInFocus, type State } from './state.ts'

/** The server and the access token of the dashboard. */
export interface Place {
  url: string
  profile: string | undefined
}

export const headerLine = (state: State, { url, profile }: Place, width: number, colours: Colours): string => {
  const { viewer, link, nowMs } = state
  const readOnly = viewer.permissions.some(each => each === 'webhooks' || each === 'admin') ? '' : ' (read only)'
  const token = `token ${cellText(viewer.name)}${readOnly}`
  const left = ['Tidings', cellText(url), token, profile && `profile ${cellText(profile)}`]
  const silence = silenceOf(state)
  const sign = silence ?? { live: '● live', away: '○ away', limited: '◐ slowed', refused: '✗ refused' }[link.kind]
  const clock = `${timeOfDay(nowMs)} ${zoneName(zoneAt(nowMs))}`
  const right = silence !== undefined && width < 80 ? sign : `${sign}  ${clock}`
  const line = bothEnds(left.filter(Boolean).join('  '), right, width)
  const isLive = silence === undefined && link.kind === 'live'
  const colour = isLive ? colours.green : link.kind === 'limited' ? colours.yellow : colours.red
  return line.replace('Tidings', colours.bold('Tidings')).replace(sign, colour(sign))
}

/** After this time a poll counts as unanswered. */
const SLOW_MS = 2_000

/** How long there has been no answer, and the age of the shown data; undefined while the server answers. */
const silenceOf = ({ link, seenAtMs, startedAtMs, lookingSinceMs, nowMs }: State): string | undefined => {
  const isWaiting = lookingSinceMs !== undefined && nowMs - lookingSinceMs > SLOW_MS
  if (link.kind !== 'away' && !isWaiting) return undefined
  const silentMs = Math.floor((nowMs - (seenAtMs ?? startedAtMs)) / 1000) * 1000
  const asOf = seenAtMs === undefined ? '' : `, as of ${timeOfDay(seenAtMs)}`
  return `○ no answer for ${silentMs < 1000 ? '1 s' : duration(silentMs)}${asOf}`
}

/** The notices above the footer: the state of the server, the result of an action, a question. */
export const noticeLines = (state: State, width: number, colours: Colours): string[] => {
  const wrapped = (lines: string[]) => lines.flatMap(line => wrapLine(asStarted(line), width))
  return [...wrapped(linkNotice(state, colours)).slice(0, 2), ...wrapped(askedFor(state, colours)).slice(0, 4)]
}

const linkNotice = ({ link, seenAtMs }: State, colours: Colours): string[] => {
  const since = seenAtMs === undefined ? '' : ` The screen shows the state of ${timeOfDay(seenAtMs)}.`
  switch (link.kind) {
    case 'live':
      return []
    case 'away':
      return [colours.red(`${link.message} Still trying.${since}`)]
    case 'limited':
      return [
        colours.yellow(
          `The server limits how often this access token may ask; looking every ${duration(link.everyMs)} from ` +
            `now on.${since}`,
        ),
      ]
    case 'refused':
      return [colours.red(`${link.message}${since}`)]
  }
}

const askedFor = ({ mode, notice }: State, colours: Colours): string[] => {
  switch (mode.kind) {
    case 'search': {
      const what =
        mode.list === 'webhooks'
          ? 'a name, a URL or an id'
          : 'an id, its beginning, or text in a name, a URL or an event type'
      return [`${colours.bold('Find')} (${what}): ${cellTyped(mode.text)}█`, '  enter finds, esc leaves']
    }
    case 'since':
      return [
        `${colours.bold('Send again')} to ${shownWebhook(mode.webhook)} what it has not acknowledged since: ` +
          `${cellTyped(mode.text)}█`,
        mode.fault === ''
          ? '  so long ago as 15m, 1h30m, 7d, or 10:00, yesterday, a date; enter goes on, esc leaves'
          : colours.red(`  ${mode.fault}`),
      ]
    case 'confirm':
      return [`${colours.bold(questionOf(mode.action))} y/n`]
    default: {
      if (!notice) return []
      const colour = notice.tone === 'bad' ? colours.red : notice.tone === 'good' ? colours.green : colours.bold
      return [colour(notice.text)]
    }
  }
}

const cellTyped = (text: string): string => (text === '' ? '' : cellText(text))

type KeyHint = [key: string, does: string]

/** The keys that work here, on one or two lines; without room, the last ones of a group are left out. */
export const footerLines = (state: State, width: number, colours: Colours): string[] => {
  const groups = hintsOf(state)
  const line = groups.map(hints => lineOf(hints, colours)).join('   ')
  if (displayWidth(line) <= width) return [line]
  return groups.map(hints => {
    const shown = [...hints]
    while (displayWidth(lineOf(shown, colours)) > width) shown.pop()
    return lineOf(shown, colours)
  })
}

const lineOf = (hints: KeyHint[], colours: Colours): string =>
  hints.map(([key, does]) => `${colours.bold(key)} ${does}`).join('  ')

const hintsOf = (state: State): KeyHint[][] => {
  switch (state.mode.kind) {
    case 'confirm':
      return [
        [
          ['y', 'yes, do it'],
          ['n', 'no'],
        ],
      ]
    case 'search':
    case 'since':
      return [
        [
          ['enter', 'go on'],
          ['esc', 'leave'],
        ],
      ]
    case 'help':
      return [[['any key', 'back']]]
    case 'browse':
      return [lookHints(state), actHints(state)]
  }
}

const lookHints = (state: State): KeyHint[] => {
  const general: KeyHint[] = [
    ['tab', 'pane'],
    ['?', 'help'],
    ['q', 'quit'],
  ]
  if (state.focus === 'details') return [['↑↓', 'scroll'], ['esc', 'back'], ...general]
  if (state.focus === 'webhooks') return [['↑↓', 'choose'], ['enter', 'open'], ...general, ['/', 'find']]
  const move: KeyHint = state.deliveryId === undefined ? ['↓', 'select'] : ['home', 'newest']
  return [move, ['enter', 'story'], ...general, ['/', 'find'], ['s', 'status'], ['t', 'type']]
}

const actHints = (state: State): KeyHint[] => {
  const onWebhook: KeyHint[] = [
    ['p', 'ping'],
    ['d', 'disable'],
    ['e', 'enable'],
    ['c', 'recover'],
  ]
  return listInFocus(state) === 'deliveries' ? [['r', 'redeliver'], ...onWebhook] : onWebhook
}

export const helpLines = (state: State, width: number, colours: Colours): string[] => {
  const zone = zoneName(zoneAt(state.nowMs))
  return HELP.map(([key, text]) => `${colours.bold(key.padEnd(7))} ${text}`)
    .concat('', `Times are ${zone}, as on this machine. Counts are of the last 24 hours.`)
    .flatMap(line => wrapLine(line, width, 8))
}

const HELP: [string, string][] = [
  ['↑↓ jk', 'move; PgUp PgDn Home End likewise'],
  ['home', 'lets the deliveries follow the newest again'],
  ['enter', 'opens; esc goes back, then clears filters'],
  ['tab', 'goes to the next pane'],
  ['/', 'finds by id, or text in a URL or event type'],
  ['s t', 'one status, one event type (S T: backwards)'],
  ['r', 'sends the selected delivery again'],
  ['p d e', 'ping, disable, enable the webhook'],
  ['c', 'recover: sends all it has not acknowledged'],
  ['q', 'quits; ctrl-z puts aside until fg'],
]
