import { parseIso } from '../../../shared/time.ts'
import { CliError } from '../../errors.ts'
import { pastTime } from '../../options.ts'
import {
  type Action,
  type ActionKind,
  eventTypeChoices,
  listedWebhooks,
  listInFocus,
  notPermitted,
  type Pane,
  type State,
  selectedDelivery,
  selectedWebhook,
  statusChoices,
  targetWebhook,
} from './state.ts'

/** The rows of the panes, the length of a page. */
export interface Sizes {
  webhookRows: number
  deliveryRows: number
  detailsRows: number
  /** The number of lines of the details. */
  detailsLines: number
  /** Whether the details are beside the lists. */
  wide: boolean
}

/** The effect of a key apart from the new state. */
export type Effect = 'quit' | 'look' | 'older' | { perform: Action }
export interface Pressed {
  state: State
  effect?: Effect
}

/** Handles a key. Keys have names (`up`, `pagedown`, `enter`, `esc`, …); a typed character is its own name. */
export const press = (state: State, key: string, sizes: Sizes): Pressed => {
  if (key === 'ctrl-c') return { state, effect: 'quit' }
  const { mode } = state
  switch (mode.kind) {
    case 'help':
      return { state: { ...state, mode: { kind: 'browse' } } }
    case 'search':
      return pressInSearch(state, mode, key)
    case 'since':
      return pressInSince(state, mode, key)
    case 'confirm':
      if (key === 'y') return { state: browsing(state), effect: { perform: mode.action } }
      if (key === 'n' || key === 'esc' || key === 'q') {
        return { state: { ...browsing(state), notice: { text: 'Nothing was done.', tone: 'good' } } }
      }
      return { state }
    case 'browse':
      // The text of a running action stays until it ends.
      return browse(state.notice?.tone === 'busy' ? state : { ...state, notice: undefined }, key, sizes)
  }
}

/** Pasted text is only text, never keys. */
export const paste = (state: State, text: string): State => {
  const { mode } = state
  if (mode.kind !== 'search' && mode.kind !== 'since') return state
  return { ...state, mode: { ...mode, text: mode.text + text.replaceAll(/\s+/g, ' ').trim() } }
}

const browsing = (state: State): State => ({ ...state, mode: { kind: 'browse' } })

const edited = (text: string, key: string): string => {
  if (key === 'backspace') return Array.from(text).slice(0, -1).join('')
  if (key === 'ctrl-u') return ''
  return Array.from(key).length === 1 ? text + key : text
}

const pressInSearch = (state: State, mode: State['mode'] & { kind: 'search' }, key: string): Pressed => {
  if (key === 'esc') return { state: browsing(state) }
  if (key !== 'enter') return { state: { ...state, mode: { ...mode, text: edited(mode.text, key) } } }
  const search = { ...state.search, [mode.list]: mode.text.trim() }
  const searched = browsing({ ...state, search })
  return mode.list === 'webhooks' ? { state: searched } : refiltered(searched)
}

const pressInSince = (state: State, mode: State['mode'] & { kind: 'since' }, key: string): Pressed => {
  if (key === 'esc') return { state: browsing(state) }
  if (key !== 'enter') return { state: { ...state, mode: { ...mode, text: edited(mode.text, key), fault: '' } } }
  try {
    const sinceMs = parseIso(pastTime(mode.text.trim(), 'recover', state.nowMs))!
    return {
      state: { ...state, mode: { kind: 'confirm', action: { kind: 'recover', webhook: mode.webhook, sinceMs } } },
    }
  } catch (error) {
    if (!(error instanceof CliError)) throw error
    return { state: { ...state, mode: { ...mode, fault: error.hint ?? error.message } } }
  }
}

const browse = (state: State, key: string, sizes: Sizes): Pressed => {
  const move = MOVES[key]
  if (move) return moved(state, move, sizes)
  switch (key) {
    case 'q':
      return { state, effect: 'quit' }
    case '?':
      return { state: { ...state, mode: { kind: 'help' } } }
    case 'tab':
      return { state: focusNext(state, 1, sizes) }
    case 'shift-tab':
      return { state: focusNext(state, -1, sizes) }
    case 'enter':
      return opened(state)
    case 'esc':
      return back(state)
    case '/': {
      const list = listInFocus(state)
      return { state: { ...state, mode: { kind: 'search', list, text: state.search[list] } } }
    }
    case 's':
      return refiltered({ ...state, statuses: next(statusChoices, state.statuses, 1) })
    case 'S':
      return refiltered({ ...state, statuses: next(statusChoices, state.statuses, -1) })
    case 't':
      return refiltered({ ...state, eventType: next(eventTypeChoices, state.eventType, 1) })
    case 'T':
      return refiltered({ ...state, eventType: next(eventTypeChoices, state.eventType, -1) })
    default: {
      const kind = ACTIONS[key]
      return kind ? asked(state, kind) : { state }
    }
  }
}

const ACTIONS: Record<string, ActionKind> = { r: 'redeliver', p: 'ping', d: 'disable', e: 'enable', c: 'recover' }

/** Moves by rows, by pages, or to an end. */
type Move = { rows: number } | { pages: number } | { to: 'start' | 'end' }
const MOVES: Record<string, Move> = {
  up: { rows: -1 },
  k: { rows: -1 },
  down: { rows: 1 },
  j: { rows: 1 },
  pageup: { pages: -1 },
  'ctrl-b': { pages: -1 },
  pagedown: { pages: 1 },
  'ctrl-f': { pages: 1 },
  ' ': { pages: 1 },
  home: { to: 'start' },
  g: { to: 'start' },
  end: { to: 'end' },
  G: { to: 'end' },
}

const indexAfter = (move: Move, index: number, length: number, page: number): number => {
  const to =
    'to' in move
      ? move.to === 'start'
        ? 0
        : length - 1
      : index + ('rows' in move ? move.rows : move.pages * Math.max(1, page - 1))
  return Math.max(0, Math.min(length - 1, to))
}

const moved = (state: State, move: Move, sizes: Sizes): Pressed => {
  if (state.focus === 'details') {
    const furthest = Math.max(0, sizes.detailsLines - sizes.detailsRows)
    const from = Math.min(state.scrolled, furthest)
    return { state: { ...state, scrolled: indexAfter(move, from, furthest + 1, sizes.detailsRows) } }
  }
  if (state.focus === 'webhooks') {
    // “All” comes before the first webhook.
    const ids = [undefined, ...listedWebhooks(state).map(({ id }) => id)]
    const to = indexAfter(move, Math.max(0, ids.indexOf(state.webhookId)), ids.length, sizes.webhookRows)
    if (ids[to] === state.webhookId) return { state }
    return refiltered({ ...state, webhookId: ids[to], detailsOf: 'webhooks', scrolled: 0 })
  }
  return movedInDeliveries(state, move, sizes)
}

const movedInDeliveries = (state: State, move: Move, sizes: Sizes): Pressed => {
  const deliveries = state.deliveries ?? []
  const at = deliveries.findIndex(({ id }) => id === state.deliveryId)
  if ('to' in move && move.to === 'start') return { state: following(state), effect: 'look' }
  if (deliveries.length === 0) return { state }
  // The first step selects the newest delivery, which holds the list.
  const to = at === -1 && 'rows' in move ? 0 : indexAfter(move, Math.max(0, at), deliveries.length, sizes.deliveryRows)
  const selected = select(state, deliveries[to]!.id)
  if (to === deliveries.length - 1 && state.more) return { state: selected, effect: 'older' }
  return sizes.wide ? { state: selected, effect: 'look' } : { state: selected }
}

const select = (state: State, deliveryId: string): State =>
  deliveryId === state.deliveryId
    ? state
    : { ...state, deliveryId, detailsOf: 'deliveries', scrolled: 0, timeline: undefined }

/** Deselects the delivery, so that the list follows the newest again. */
const following = (state: State): State => ({
  ...state,
  deliveryId: undefined,
  timeline: undefined,
  newer: 0,
  scrolled: 0,
})

/** After a change of the filters: shows the known rows at once, and requests the rest. */
const refiltered = (state: State): Pressed => {
  const { webhookId, statuses, eventType } = state
  const known = state.deliveries?.filter(
    each =>
      (webhookId === undefined || each.webhookId === webhookId) &&
      (statuses.length === 0 || statuses.includes(each.status)) &&
      (eventType === undefined || each.eventType === eventType),
  )
  const deliveries = known?.length ? known : undefined
  return { state: { ...following(state), deliveries, newest: undefined, perSecond: 0, more: false }, effect: 'look' }
}

const focusNext = (state: State, step: 1 | -1, { wide }: Sizes): State => {
  const panes: Pane[] =
    wide || state.focus === 'details' ? ['webhooks', 'deliveries', 'details'] : ['webhooks', 'deliveries']
  const focus = next(panes, state.focus, step)
  return focus === 'details' ? { ...state, focus } : { ...state, focus, detailsOf: focus }
}

const opened = (state: State): Pressed => {
  if (state.focus === 'details') return { state }
  if (state.focus === 'webhooks') {
    if (!selectedWebhook(state)) return { state: { ...state, focus: 'deliveries', detailsOf: 'deliveries' } }
    return { state: { ...state, focus: 'details', detailsOf: 'webhooks', scrolled: 0 } }
  }
  const delivery = selectedDelivery(state) ?? state.deliveries?.[0]
  if (!delivery) return { state }
  return { state: { ...select(state, delivery.id), focus: 'details', scrolled: 0 }, effect: 'look' }
}

/** Leaves the details, then returns to the newest, then clears the filters. */
const back = (state: State): Pressed => {
  if (state.focus === 'details') return { state: { ...state, focus: state.detailsOf, scrolled: 0 } }
  if (state.focus === 'webhooks' && state.search.webhooks !== '') {
    return { state: { ...state, search: { ...state.search, webhooks: '' } } }
  }
  if (state.focus === 'deliveries' && state.deliveryId !== undefined) return { state: following(state), effect: 'look' }
  const search = { ...state.search, deliveries: '' }
  const open = { ...state, search, statuses: [], eventType: undefined, webhookId: undefined }
  const filtered =
    state.webhookId !== undefined || state.statuses.length > 0 || state.eventType || state.search.deliveries !== ''
  return filtered ? refiltered(open) : { state }
}

/** Asks for confirmation, or says why the action is not possible. */
const asked = (state: State, kind: ActionKind): Pressed => {
  const refuse = (text: string): Pressed => ({ state: { ...state, notice: { text, tone: 'bad' } } })
  if (state.notice?.tone === 'busy') return { state }
  const forbidden = notPermitted(state, kind)
  if (forbidden) return refuse(forbidden)
  if (kind === 'redeliver') {
    const delivery = listInFocus(state) === 'deliveries' ? selectedDelivery(state) : undefined
    if (!delivery) return refuse('Select a delivery first, with ↓ in the list of deliveries.')
    return confirming(state, { kind, delivery })
  }
  const webhook = targetWebhook(state)
  if (!webhook) return refuse('Select a webhook first, with tab and ↓, or one of its deliveries.')
  if (kind === 'recover') return { state: { ...state, mode: { kind: 'since', webhook, text: '2h', fault: '' } } }
  const pending = state.webhooks?.find(({ id }) => id === webhook.id)?.health.pending ?? 0
  return confirming(state, { kind, webhook, pending })
}

const confirming = (state: State, action: Action): Pressed => ({
  state: { ...state, mode: { kind: 'confirm', action } },
})

/** The next choice, cyclically; an unknown value counts as the first. */
const next = <Choice>(choices: Choice[], current: Choice, step: 1 | -1): Choice => {
  const at = choices.findIndex(choice => JSON.stringify(choice) === JSON.stringify(current))
  return choices[(Math.max(0, at) + step + choices.length) % choices.length]!
}
