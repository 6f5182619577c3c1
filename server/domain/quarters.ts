// Quarters are written `<year>-<1…4>`, dates `YYYY-MM-DD`, both in UTC.

/** Years whose quarters, and the due dates of their reports, every engine and client can write as a date. */
const FIRST_YEAR = 1900
const LAST_YEAR = 9998

export const isQuarter = (text: string): boolean =>
  /^\d{4}-[1-4]$/.test(text) && Number(text.slice(0, 4)) >= FIRST_YEAR && Number(text.slice(0, 4)) <= LAST_YEAR

export const dateOf = (ms: number): string => new Date(ms).toISOString().slice(0, 10)

/** The quarter that had ended last at `now`. */
export const quarterBefore = (now: number): string => {
  const date = new Date(now)
  const quarter = Math.floor(date.getUTCMonth() / 3)
  return quarter === 0 ? `${date.getUTCFullYear() - 1}-4` : `${date.getUTCFullYear()}-${quarter}`
}

/** The due date of a quarter's report: so many days after the quarter's last day. */
export const dueDateOf = (quarter: string, days: number): string => {
  const [year, number] = quarter.split('-').map(Number) as [number, number]
  return dateOf(Date.UTC(year, number * 3, days))
}
