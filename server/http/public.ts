/**
 * Of what is the same for everybody, to be kept for 5 minutes, and to be read by pages of any origin. Nothing else is.
 */
export const PUBLIC = { 'Cache-Control': 'public, max-age=300', 'Access-Control-Allow-Origin': '*' }
