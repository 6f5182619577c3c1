import { purge } from '../../server/scheduler/purge.ts'
import './sources.ts'

// Preloaded into a server whose purge shall work within a benchmark: events are kept for BENCH_RETENTION_MINUTES.

const { begin } = purge
const retentionDays = Number(process.env.BENCH_RETENTION_MINUTES) / (24 * 60)
purge.begin = tools => begin({ ...tools, retentionDays })
