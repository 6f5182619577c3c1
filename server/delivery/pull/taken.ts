/** Who has taken a delivery, as its queue row says until the attempt ends. */
type Taker = {
  /** The access token. */
  id: string
  name: string
  /** The address of the client, as the server sees it. */
  address?: string
  /** The webhook's epoch at that time: a redirected webhook moves the row on, but not the attempt. */
  epoch: number
}

/** How long a client has for its answer; `extendDeliveries` gives it more, up to the second from the beginning. */
export const TAKEN_MS = 30_000
export const LONGEST_TAKEN_MS = 15 * 60_000

export const MOST_AT_ONCE = 100
export const LONGEST_WAIT_S = 30

/** What the queue row says of a client that takes it. */
export const takerJson = (
  { token, address }: { token: { id: string; name: string }; address: string | undefined },
  epoch: number,
): string => {
  const { id, name } = token
  return JSON.stringify({ id, name, ...(address !== undefined && { address }), epoch } satisfies Taker)
}

/** Who has taken a delivery, by its queue row. */
export const takerOf = (row: { taken: string | null } | undefined): Taker | undefined =>
  row?.taken ? JSON.parse(row.taken) : undefined
