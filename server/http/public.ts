/** Headers of public content: cached for 5 minutes, readable by pages of any origin. No other content has them. */
export const PUBLIC = { 'Cache-Control': 'public, max-age=300', 'Access-Control-Allow-Origin': '*' }
