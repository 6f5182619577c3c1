import type { State } from './state.ts'

/** The smallest terminal for the dashboard. */
export const LEAST = { columns: 60, rows: 15 }
/** From this width on the details are beside the lists. */
const WIDE = 150
const GUTTER = 2
/** A pane's title, and the titles of its columns. */
const HEAD = 2

export interface Layout {
  wide: boolean
  /** Whether the lists are shown; without room for both, the details replace them. */
  lists: boolean
  details: boolean
  listsWidth: number
  detailsWidth: number
  webhookRows: number
  deliveryRows: number
  detailsRows: number
}

/** Divides the terminal into header, lists, details, and `bottom` lines of notices and keys. */
export const layoutOf = (
  { columns, rows }: { columns: number; rows: number },
  { focus, webhooks = [] }: State,
  bottom: number,
): Layout => {
  const wide = columns >= WIDE
  const listsWidth = wide ? Math.floor(columns * 0.54) : columns
  const body = rows - 1 - bottom
  const room = Math.max(2, body - 2 * HEAD)
  // One row for “all webhooks”, and at least some rows for deliveries.
  const webhookRows = Math.min(webhooks.length + 1, Math.max(3, Math.floor(room / 3)))
  return {
    wide,
    lists: wide || focus !== 'details',
    details: wide || focus === 'details',
    listsWidth,
    detailsWidth: wide ? columns - listsWidth - GUTTER : columns,
    webhookRows,
    deliveryRows: Math.max(1, room - webhookRows),
    detailsRows: body - 1,
  }
}

/** The first shown row of a list, so that the selected one is in the middle once the list scrolls. */
export const firstShown = (selected: number, length: number, height: number): number =>
  Math.max(0, Math.min(length - height, selected - Math.floor(height / 2)))
