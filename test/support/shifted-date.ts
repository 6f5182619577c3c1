const TrueDate = Date

/** Puts `Date` of this process ahead by so many milliseconds; the monotonic clock is not. */
export const shiftDate = (aheadMs: () => number): void => {
  globalThis.Date = new Proxy(TrueDate, {
    construct: (target, args, newTarget) =>
      Reflect.construct(target, args.length === 0 ? [TrueDate.now() + aheadMs()] : args, newTarget),
    apply: () => new TrueDate(TrueDate.now() + aheadMs()).toString(),
    get: (target, name, receiver) =>
      name === 'now' ? () => TrueDate.now() + aheadMs() : Reflect.get(target, name, receiver),
  })
}
