// On a full disk a database server refuses only what needs new space, so a process remembers a refusal: a small write
// may succeed meanwhile. An embedded engine refuses each.

/** ER_DISK_FULL, ER_RECORD_FILE_FULL, ER_ERROR_ON_WRITE and ER_BINLOG_LOGGING_IMPOSSIBLE. */
const MYSQL_FULL = [1021, 1114, 1026, 1598]
/** SQLITE_FULL, SQLITE_IOERR_WRITE and SQLITE_IOERR_SHMSIZE. */
const SQLITE_FULL = [13, 778, 4874]
/** ER_GET_ERRNO and ER_ERROR_ON_WRITE of others, by the system's error in their message. */
const NO_SPACE = /\b(ENOSPC|error:? 28|errno:? 28|No space left)\b/i

/** Whether the database refused a write because its disk is full. */
export const isFull = (error: unknown): boolean => {
  const { errno, errcode, message = '' } = error as { errno?: number; errcode?: number; message?: string }
  if (errcode !== undefined) return SQLITE_FULL.includes(errcode)
  return errno !== undefined && (MYSQL_FULL.includes(errno) || (errno > 0 && NO_SPACE.test(message)))
}

/** A process that was refused counts its database as full for so long. */
const REMEMBERED_MS = 30_000

let refusedAt = Number.NEGATIVE_INFINITY

/** Remembers an error of any statement, if a full disk is its cause. */
export const noteFull = (error: unknown): void => {
  if (isFull(error)) refusedAt = performance.now()
}

/** Whether a write of this process was refused a short while ago because the disk was full. */
export const wasFull = ({ dialect }: { dialect: { isEmbedded: boolean } }): boolean =>
  !dialect.isEmbedded && performance.now() - refusedAt < REMEMBERED_MS
