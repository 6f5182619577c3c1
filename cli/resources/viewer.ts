import type { Permission } from '../../shared/vocabulary.ts'
import type { Ask } from '../connection/client.ts'
import { cellText } from '../output/output.ts'

/** The calling access token, as the API shows it. */
export interface Viewer {
  id: string
  name: string
  apiKey: string
  permissions: Permission[]
  seesAllOrganisations: boolean
  /** Those it is limited to; none if it sees all, which may be more than a list can hold. */
  organisations: { id: string; name: string }[]
  expiresAt: string | null
}

const viewerDocument = '{ viewer { id name apiKey permissions seesAllOrganisations expiresAt } }'

/** Asks which access token this is. */
export const askViewer = async (ask: Ask): Promise<Viewer> => {
  const { viewer } = await ask<{ viewer: Omit<Viewer, 'organisations'> }>(viewerDocument)
  if (viewer.seesAllOrganisations) return { ...viewer, organisations: [] }
  const limited = await ask<{ viewer: Pick<Viewer, 'organisations'> }>('{ viewer { organisations { id name } } }')
  return { ...viewer, organisations: limited.viewer.organisations }
}

/** `all organisations`, their names, or `no organisation`. */
export const describeSight = ({ seesAllOrganisations, organisations }: Viewer): string => {
  if (seesAllOrganisations) return 'all organisations'
  return organisations.length === 0 ? 'no organisation' : cellText(organisations.map(({ name }) => name).join(', '))
}
