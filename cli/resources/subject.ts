import { isId } from '../../shared/ids.ts'
import type { Session } from '../connection/session.ts'
import { CliError, exitCodes } from '../errors.ts'
import { cellText } from '../output/output.ts'
import { ambiguous, calledSo, nounOf, type Resource } from './ids.ts'

/** What mutations change or create. */
const SUBJECTS: Resource[] = ['webhooks', 'accessTokens', 'organisations', 'projects', 'users', 'projectReports']

/** The selector of the changes of one object: those that name it, and the one that created it. */
export const aboutSubject = (id: string): Record<string, unknown> => ({
  $or: [{ subjectId: id }, ...['id', 'webhookId', 'deliveryId'].map(name => ({ [`arguments.${name}`]: id }))],
})

/**
 * The id of an object in the audit log, by its id or name, whichever kind it is of. An object that is deleted is known
 * by its id, from the log. Undefined if none is given.
 * @throws CliError with exit code 3 if there is none, and with 2 if several are called so
 */
export const resolveSubject = async (session: Session, given: string | undefined): Promise<string | undefined> => {
  if (given === undefined || (session.dryRun && isId(given))) return given
  const found = (await Promise.all(SUBJECTS.map(resource => ofKind(session, resource, given)))).flat()
  if (found.length > 1) throw ambiguous(given, 'object', found.map(described), false)
  if (found.length === 1) return found[0]!.id
  const { changes } = await session.ask<{ changes: unknown[] }>(
    'query ($query: MangoQuery) { changes: auditLog(query: $query) { id } }',
    { query: { selector: aboutSubject(given), limit: 1 } },
  )
  if (changes.length > 0) return given
  throw new CliError(
    exitCodes.notFound,
    'NOT_FOUND',
    `Nothing is called ${cellText(given)}, and no change of it is kept.`,
    'Give the id or name of a webhook, an access token, an organisation, a project, a user or a report; of one that ' +
      'is deleted, its id.',
  )
}

const ofKind = async (session: Session, resource: Resource, given: string): Promise<{ id: string; noun: string }[]> => {
  const rows = isId(given)
    ? (
        await session.ask<{ rows: { id: string }[] }>(
          `query ($query: MangoQuery) { rows: ${resource}(query: $query) { id } }`,
          { query: { selector: { id: given.toLowerCase() }, limit: 1 } },
        )
      ).rows
    : await calledSo(session, resource, given)
  return rows.map(({ id }) => ({ id, noun: nounOf(resource) }))
}

const described = ({ id, noun }: { id: string; noun: string }): string => `${noun} ${cellText(id)}`
