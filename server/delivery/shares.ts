// Shares out the places of one process. There are `concurrency` places for attempts in flight, and twice as many for
// jobs in memory, which include waiting and unrecorded attempts.
//
// Tenants. A tenant (the access token that created a webhook) may take one more place while it has less than three
// times the free ones. Alone it reaches three quarters. If n tenants take all they can, each has 3 of 3n + 1 places,
// and one of 3n + 1 stays free for the next tenant. Places go to the tenants in turn, then to their webhooks in turn.
//
// Webhooks. A webhook may take one more place while it has less than half of what its tenant may still take. Alone it
// reaches a quarter of all places. However many webhooks of a tenant take all they can, twice the share of one stays
// free for the next.
//
// Endpoints that do not answer. An attempt without an answer for half a second is set aside: it continues, and its
// place becomes free. Four times `concurrency` attempts may be set aside. A webhook is silent if it has attempts aside
// and no answer since they began: it may have less than an eighth of the remaining places aside. The last eighth of a
// tenant's places is for webhooks that have answered this process. An endpoint that has timed out repeatedly, or has
// just answered 429, is only probed until it answers: one attempt at a time, and all probed endpoints together a
// quarter of the places.
//
// All this is of a webhook in its epoch. With a new URL it begins anew, and what is still in flight to the old one
// counts for its tenant alone.
//
// Recovered deliveries come after new ones: they take less than a sixteenth of the free places at a time, a quarter of
// what a webhook may have alone.
//
// Pings have separate places (pings.ts), and appear here only for their leases.
//
// Several processes share the queue, each with its own shares. So a webhook has at most a quarter of all places, and
// one process holds each delivery. A hold (429) is in the database, and each process respects it from its next claim
// on. There is no guarantee that a webhook has fewer connections than its share times the number of processes; that a
// process stops deliveries that it took before a hold, at most its share; or of any order of deliveries.

/** The numbers that decide whether a webhook may have one more place of a pool. */
export type Share = {
  /** The free places of the pool. */
  free: number
  /** The places of its tenant in the pool. */
  ofTenant: number
  /** Its own, those set aside included. */
  own: number
  aside: number
  /** Whether it has answered this process. */
  hasAnswered: boolean
  /** While it is probed: its other attempts, and whether one more endpoint may be probed. */
  probe: { others: number; hasRoom: boolean } | undefined
  /** While it is silent: whether it waits already, and what its tenant may still set aside. */
  silent: { waits: boolean; asideLeft: number } | undefined
  /** Of a recovered delivery: the places of others that were recovered. */
  recovered: number | undefined
}

/** Whether a webhook may have one more place. */
export const mayTake = (share: Share): boolean => {
  const { free, probe } = share
  if (free <= 0) return false
  if (probe) return probe.others === 0 && probe.hasRoom
  return isWithinAside(share) && isWithinTenants(share) && isWithinRecovered(share)
}

const isWithinAside = ({ silent, own }: Share): boolean =>
  !silent || (!silent.waits && own < Math.max(1, silent.asideLeft / 8))

const isWithinTenants = ({ free, ofTenant, own, aside, hasAnswered }: Share): boolean => {
  const ofTenantLeft = (3 * free - ofTenant) / 4
  const left = ofTenantLeft - (hasAnswered ? 0 : (ofTenant + ofTenantLeft) / 8)
  // A webhook without any place gets one while its tenant has one left.
  return (ofTenant === 0 || left > 0) && own < Math.max(1, (left - aside) / 2)
}

const isWithinRecovered = ({ free, recovered }: Share): boolean =>
  recovered === undefined || recovered < Math.max(1, free / 16)
