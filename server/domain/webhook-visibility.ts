import type { Knex } from 'knex'
import { type AccessToken, may } from './access-tokens.ts'

const seenBy = (token: AccessToken) => (query: Knex.QueryBuilder) =>
  query.select('organisation_id').from('access_token_organisations').where('access_token_id', token.id)

/**
 * A webhook is visible to its own token, to admins, and to every token that sees all organisations it can receive from.
 */
export const visibleWebhooks = (token: AccessToken) => (may(token, 'admin') ? () => {} : redirectableWebhooks(token))

/**
 * The webhooks whose events a token may turn to another url: its own, and those of which it sees all organisations that
 * they can receive from. These are the ones that a webhook names and those of the projects it names, or, where it names
 * none, the ones that its maker sees.
 */
export const redirectableWebhooks =
  (token: AccessToken) =>
  (builder: Knex.QueryBuilder): void => {
    if (token.seesAllOrganisations) return
    const seen = seenBy(token)
    builder.where(some =>
      some
        .where('webhooks.access_token_id', token.id)
        .orWhere(named =>
          named
            .where('webhooks.all_organisations_and_projects', 0)
            .whereNotExists(query =>
              query
                .select('wo.webhook_id')
                .from('webhook_organisations as wo')
                .whereRaw('wo.webhook_id = webhooks.id')
                .whereNotIn('wo.organisation_id', seen),
            )
            .whereNotExists(query =>
              query
                .select('wp.webhook_id')
                .from('webhook_projects as wp')
                .join('projects as p', 'p.id', 'wp.project_id')
                .whereRaw('wp.webhook_id = webhooks.id')
                .whereNotIn('p.organisation_id', seen),
            ),
        )
        .orWhere(unnamed =>
          unnamed.where('webhooks.all_organisations_and_projects', 1).whereIn('webhooks.access_token_id', makers =>
            makers
              .select('maker.id')
              .from('access_tokens as maker')
              .where('maker.sees_all_organisations', 0)
              .whereExists(query =>
                query
                  .select('any.access_token_id')
                  .from('access_token_organisations as any')
                  .whereRaw('any.access_token_id = maker.id'),
              )
              .whereNotExists(query =>
                query
                  .select('mo.access_token_id')
                  .from('access_token_organisations as mo')
                  .whereRaw('mo.access_token_id = maker.id')
                  .whereNotIn('mo.organisation_id', seen),
              ),
          ),
        ),
    )
  }
