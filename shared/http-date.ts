const MONTHS = ['Jan', 'Feb', 'Mar', 'Apr', 'May', 'Jun', 'Jul', 'Aug', 'Sep', 'Oct', 'Nov', 'Dec']
const DAY = '(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)'
const LONG_DAY = '(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day'
const MONTH = `(?<month>${MONTHS.join('|')})`
const TIME = '(?<hour>[01]\\d|2[0-3]):(?<minute>[0-5]\\d):(?<second>[0-5]\\d|60)'
const IMF_FIXDATE = new RegExp(`^${DAY}, (?<day>\\d{2}) ${MONTH} (?<year>\\d{4}) ${TIME} GMT$`)
const RFC850_DATE = new RegExp(`^${LONG_DAY}, (?<day>\\d{2})-${MONTH}-(?<year>\\d{2}) ${TIME} GMT$`)
const ASCTIME_DATE = new RegExp(`^${DAY} ${MONTH} (?<day>\\d{2}| \\d) ${TIME} (?<year>\\d{4})$`)
const PYTHON_CLIENT_DATE = new RegExp(`^${MONTH}, (?<day>\\d{2}) (?<year>\\d{4}) ${TIME}(?:\\.\\d+)? GMT$`)

/**
 * Epoch milliseconds of an HTTP-date in any of its three forms (RFC 9110 section 5.6.7); undefined if `text` is none. A
 * two-digit year lies at most 50 years after `nowMs`. The name of the weekday is not checked.
 */
export const parseHttpDate = (text: string, nowMs: number = Date.now()): number | undefined => {
  const ms = fromMatch(IMF_FIXDATE.exec(text) ?? ASCTIME_DATE.exec(text))
  if (ms !== undefined) return ms
  const short = RFC850_DATE.exec(text)
  if (short === null) return undefined
  const thisYear = new Date(nowMs).getUTCFullYear()
  const year = thisYear - (thisYear % 100) + Number(short.groups!.year)
  return fromMatch(short, year > thisYear + 50 ? year - 100 : year)
}

/** Epoch milliseconds of the form that App Configuration's Python client sends, `Nov, 21 2026 00:40:01.123456 GMT`. */
export const parsePythonClientDate = (text: string): number | undefined => fromMatch(PYTHON_CLIENT_DATE.exec(text))

const fromMatch = (match: RegExpExecArray | null, year?: number): number | undefined => {
  if (match === null) return undefined
  const { day, month, hour, minute, second } = match.groups!
  const date = Date.UTC(year ?? Number(match.groups!.year), MONTHS.indexOf(month!), Number(day))
  // Date.UTC turns 30 February into a day in March.
  if (new Date(date).getUTCDate() !== Number(day)) return undefined
  return date + ((Number(hour) * 60 + Number(minute)) * 60 + Number(second)) * 1000
}
