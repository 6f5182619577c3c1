import { accessTokenMutations } from './access-tokens.ts'
import { deliveryMutations } from './deliveries.ts'
import type { Mutations } from './mutation.ts'
import { organisationMutations } from './organisations.ts'
import { projectReportMutations } from './project-reports.ts'
import { projectMutations } from './projects.ts'
import { pullMutations } from './pull.ts'
import { signingKeyMutations } from './signing-keys.ts'
import { userMutations } from './users.ts'
import { webhookMutations } from './webhooks.ts'

/** Every mutation of the schema. */
export const mutations: Mutations = {
  ...accessTokenMutations,
  ...deliveryMutations,
  ...organisationMutations,
  ...projectReportMutations,
  ...pullMutations,
  ...projectMutations,
  ...signingKeyMutations,
  ...userMutations,
  ...webhookMutations,
}
