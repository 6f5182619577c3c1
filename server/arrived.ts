/**
 * Calls `work` after everything that has arrived by now is read. After a process stood still, timers fire before
 * sockets are read, so that a timeout judged at once would miss an answer that arrived in time. The first turn of the
 * event loop reads; the second runs what reading triggered.
 */
export const whenArrivedIsRead = (work: () => void): void => {
  setImmediate(() => setImmediate(work))
}
