// Quarters are written `<year>-<1…4>`, which sorts as they follow each other, and dates `YYYY-MM-DD`, both in UTC.

/** Years whose quarters, and the due dates of their reports, every engine and client can write as a date. */
const FIRST_YEAR = 1900
const LAST_YEAR = 9998

export const isQuarter = (text: string): boolean =>
  /^\d{4}-[1-4]$/.test(text) && Number(text.slice(0, 4)) >= FIRST_YEAR && Number(text.slice(0, 4)) <= LAST_YEAR

export const dateOf = (ms: number): string => new Date(ms).toISOString().slice(0, 10)

/** The quarter that a time is in. */
export const quarterOf = (ms: number): string => {
  const date = new Date(ms)
  return `${date.getUTCFullYear()}-${Math.floor(date.getUTCMonth() / 3) + 1}`
}

/** So many quarters later than one, or earlier where that is less than 0. */
export const quartersAfter = (quarter: string, count: number): string => quarterOf(startOf(quarter, count))

/** The quarter that had ended last at `now`. */
export const quarterBefore = (now: number): string => quartersAfter(quarterOf(now), -1)

/** When a quarter begins. */
export const startOfQuarter = (quarter: string): number => startOf(quarter, 0)

/** When a quarter ends: the first moment after it. */
export const endOfQuarter = (quarter: string): number => startOf(quarter, 1)

/** The due date of a quarter's report: so many days after the quarter's last day. */
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
