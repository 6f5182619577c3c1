const EMBEDDED = 'sqlite:'

/** The file that a database URL names, `sqlite:PATH`; undefined for a server. */
export const databaseFile = (url: string): string | undefined =>
  url.startsWith(EMBEDDED) ? url.slice(EMBEDDED.length) : undefined
