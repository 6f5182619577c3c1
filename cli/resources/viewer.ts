import type { Permission } from '../../shared/vocabulary.ts'
import type { Ask } from '../connection/client.ts'
import { cellText } from '../output/output.ts'

/** The access token in use. */
export interface Viewer {
  id: string
  name: string
  apiKey: string
  permissions: Permission[]
  seesAllOrganisations: boolean
  /** The organisations it is limited to; empty if it sees all, which may be too many for a list. */
  organisations: { id: string; name: string }[]
  expiresAt: string | null
}

const viewerDocument = '{ viewer { id name apiKey permissions seesAllOrganisations expiresAt } }'

/** Asks the server for the access token in use. Throws a CliError. */
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
