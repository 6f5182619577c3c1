/** The calling access token, as the API shows it. */
export interface Viewer {
  id: string
  name: string
  apiKey: string
  permissions: string[]
  seesAllOrganisations: boolean
  organisations: { id: string; name: string }[]
  expiresAt: string | null
}

export const viewerDocument =
  '{ viewer { id name apiKey permissions seesAllOrganisations organisations { id name } expiresAt } }'
