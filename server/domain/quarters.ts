// Quarters are written `<year>-<1…4>`, dates `YYYY-MM-DD`, both in UTC.

export const isQuarter = (text: string): boolean => /^\d{4}-[1-4]$/.test(text)

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
