/**
 * Calls `work` when all that had arrived by now has been read. After a process stood still, timers fire before sockets
 * are read: a limit that is judged at once would not see the answer that came within it. The first turn reads; the
 * second is for what reading has set off.
 */
export const whenArrivedIsRead = (work: () => void): void => {
  setImmediate(() => setImmediate(work))
}
