// Preloaded into a process whose machine has a wrong clock: `Date` is ahead by CLOCK_AHEAD_MS; the monotonic clock is
// not.

const aheadMs = Number(process.env.CLOCK_AHEAD_MS)
const TrueDate = Date

globalThis.Date = new Proxy(TrueDate, {
  construct: (target, args, newTarget) =>
    Reflect.construct(target, args.length === 0 ? [TrueDate.now() + aheadMs] : args, newTarget),
  apply: () => new TrueDate(TrueDate.now() + aheadMs).toString(),
  get: (target, name, receiver) =>
    name === 'now' ? () => TrueDate.now() + aheadMs : Reflect.get(target, name, receiver),
})
