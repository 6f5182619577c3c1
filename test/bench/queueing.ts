// A closed queueing network with one class of customers, solved by mean value analysis (Reiser and Lavenberg, 1980). A
// station of several cores is one that is as much faster and a delay, as if no customer waited at a free core (Seidmann
// and others, 1987).

/** What a delivery takes of each station, in milliseconds. */
export type Demands = {
  /** CPU of the server processes, of the database, and of the endpoints. */
  server: number
  database: number
  receivers: number
  /** Syncs of the database's log, of which there is one at a time. */
  log: number
}

type Machine =
  | { processes: number; activities: number; databaseCores: number; sharedCores?: undefined }
  /** Everything shares the cores of one machine. */
  | { processes: number; activities: number; sharedCores: number }

type Station = { name: string; demandMs: number; servers: number; count?: number }

const stationsOf = ({ server, database, receivers, log }: Demands, machine: Machine): Station[] => {
  const ofLog = { name: 'log', demandMs: log, servers: 1 }
  if (machine.sharedCores !== undefined) {
    return [{ name: 'cores', demandMs: server + database + receivers, servers: machine.sharedCores }, ofLog]
  }
  const { processes, databaseCores } = machine
  return [
    { name: 'server', demandMs: server / processes, servers: 1, count: processes },
    { name: 'database', demandMs: database, servers: databaseCores },
    ofLog,
  ]
}

/**
 * Deliveries a second of some server processes, each with a number of activities under way, and the station that is
 * busiest. Between whole numbers of customers it is interpolated.
 */
export const throughput = (demands: Demands, machine: Machine): { perSecond: number; bottleneck: string } => {
  const stations = stationsOf(demands, machine)
  const queued = stations.map(() => 0)
  const delayMs = stations.reduce((sum, { demandMs, servers }) => sum + (demandMs * (servers - 1)) / servers, 0)
  const customers = machine.processes * machine.activities
  let [before, perMs] = [0, 0]
  for (let n = 1; n <= Math.ceil(customers); n++) {
    const restMs = stations.map(({ demandMs, servers }, at) => (demandMs / servers) * (1 + queued[at]!))
    const allMs = restMs.reduce((sum, ms, at) => sum + ms * (stations[at]!.count ?? 1), delayMs)
    before = perMs
    perMs = n / allMs
    for (const at of stations.keys()) queued[at] = perMs * restMs[at]!
  }
  const part = customers - Math.floor(customers)
  const between = part === 0 ? perMs : before + part * (perMs - before)
  const busiest = stations.reduce((most, each) => (busyMs(each) > busyMs(most) ? each : most))
  return { perSecond: 1000 * between, bottleneck: busiest.name }
}

const busyMs = ({ demandMs, servers }: Station): number => demandMs / servers
