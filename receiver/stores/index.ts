export {
  type DurableNamespace,
  type DurableStorage,
  durableObjectReplayStore,
  ReplayStoreObject,
} from './durable-object.ts'
export { type EvalScript, redisReplayStore } from './redis.ts'
export { type KnexLike, type KnexQuery, receiptsTable, type SqlStoreOptions, sqlReplayStore } from './sql.ts'
