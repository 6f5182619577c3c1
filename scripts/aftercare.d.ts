export type Aftercare = {
  include(processId: number): void
  exclude(processId: number): void
  end(): Promise<void>
}
/** Ends processes and removes a folder when this process ends, however it does. */
export const aftercare: (folder: string) => Aftercare
