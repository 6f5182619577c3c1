/** A private database server, which can be ended, frozen and started again. */
export type ThrowAwayDatabase = {
  url: string
  signal(name: 'SIGKILL' | 'SIGTERM' | 'SIGSTOP' | 'SIGCONT'): Promise<void>
  start(): Promise<void>
  stop(): Promise<void>
}
export const startThrowAwayDatabase: (program?: string, options?: { isDurable?: boolean }) => Promise<ThrowAwayDatabase>
export const findServer: () => string | undefined
