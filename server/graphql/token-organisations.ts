import { type AccessTokenRow, accessTokens, organisations } from '../domain/resources.ts'
import { createdWith } from '../domain/visibility.ts'
import type { Row } from '../mango/documents.ts'
import { parsePage } from '../mango/page.ts'
import type { QueryContext } from './context.ts'
import type { Listing, Resolver } from './fields.ts'

/** The key of every token that sees all organisations. */
const ALL = 'all'

/**
 * The organisations of another token that the caller sees, with the same number of statements for one token and many.
 */
export const tokenOrganisations: Resolver<AccessTokenRow> = (token, { query }, context, info) =>
  context.budget.answer(
    info,
    context.loaders
      .list(info, keys => organisationsOf(context, query, keys))
      .load(token.sees_all_organisations === 1 ? ALL : token.id),
  )

const organisationsOf = async (
  context: QueryContext,
  query: Listing['query'],
  keys: readonly string[],
): Promise<Row[][]> => {
  const all = keys.includes(ALL) ? await context.list(organisations, query) : []
  const ids = keys.filter(key => key !== ALL)
  if (ids.length === 0) return keys.map(() => all)
  const seenBySome = (page: Listing['query']) => context.list(organisations, page, createdWith(ids))
  if (ids.length === 1) {
    const own = await seenBySome(query)
    return keys.map(key => (key === ALL ? all : own))
  }
  const { limit, skip } = parsePage(query ?? {}, organisations)
  const { selector, sort, after, afterValues } = query ?? {}
  const some = await seenBySome({ selector, sort, after, afterValues })
  const loader = context.loaders.value(accessTokens.fields.organisationIds)
  const lists = await Promise.all(ids.map(id => loader.load(id)))
  const seen = new Map(ids.map((id, index) => [id, new Set(lists[index] as string[])]))
  return keys.map(key => {
    const own = seen.get(key)
    return own ? some.filter(({ id }) => own.has(id as string)).slice(skip, skip + (limit ?? some.length)) : all
  })
}
