import { readFileSync } from 'node:fs'

// Preloaded into a process whose machine's clock jumps: `Date` is ahead by the milliseconds in the file CLOCK_FILE; the
// monotonic clock is not.

const TrueDate = Date
let aheadMs = 0
setInterval(() => {
  aheadMs = Number(readFileSync(process.env.CLOCK_FILE!, 'utf8'))
}, 200).unref()

globalThis.Date = new Proxy(TrueDate, {
  construct: (target, args, newTarget) =>
    Reflect.construct(target, args.length === 0 ? [TrueDate.now() + aheadMs] : args, newTarget),
  apply: () => new TrueDate(TrueDate.now() + aheadMs).toString(),
  get: (target, name, receiver) =>
    name === 'now' ? () => TrueDate.now() + aheadMs : Reflect.get(target, name, receiver),
})
