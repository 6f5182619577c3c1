// Quarters are written `<year>-<1…4>`, which sorts in the order of time, and dates `YYYY-MM-DD`, both in UTC.

/** The years whose quarters and due dates every engine and client can represent as a date. */
const FIRST_YEAR = 1900
const LAST_YEAR = 9998

export const isQuarter = (text: string): boolean =>
  /^\d{4}-[1-4]$/.test(text) && Number(text.slice(0, 4)) >= FIRST_YEAR && Number(text.slice(0, 4)) <= LAST_YEAR

export const dateOf = (ms: number): string => new Date(ms).toISOString().slice(0, 10)

/** The quarter of a time. */
export const quarterOf = (ms: number): string => {
  const date = new Date(ms)
  return `${date.getUTCFullYear()}-${Math.floor(date.getUTCMonth() / 3) + 1}`
}

/** The quarter that is `count` quarters later, or earlier for a negative number. */
export const quartersAfter = (quarter: string, count: number): string => quarterOf(startOf(quarter, count))

/** The latest quarter that has ended at `now`. */
export const quarterBefore = (now: number): string => quartersAfter(quarterOf(now), -1)

/** When a quarter begins. */
export const startOfQuarter = (quarter: string): number => startOf(quarter, 0)

/** When a quarter ends: the first moment after it. */
export const endOfQuarter = (quarter: string): number => startOf(quarter, 1)

/** The due date of a quarter's report: `days` after the quarter's last day. */
export const dueDateOf = (quarter: string, days: number): string => {
  const [year, number] = partsOf(quarter)
  return dateOf(Date.UTC(year, number * 3, days))
}

const startOf = (quarter: string, later: number): number => {
  const [year, number] = partsOf(quarter)
  return Date.UTC(year, (number - 1 + later) * 3)
}

const partsOf = (quarter: string): [year: number, number: number] => {
  const [year, number] = quarter.split('-').map(Number) as [number, number]
  return [year, number]
}
