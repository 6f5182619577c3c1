/** The answer to one request of a rehearsal, as the API tells it. */
export interface RehearsalAnswer {
  /** Which of the scene's deliveries it was, from 0. */
  delivery: number
  eventType: string
  /** The vector's name, if it was one. */
  vector: string | null
  isAdvisable: boolean
  statusCode: number | null
  failure: string | null
  detail: string | null
  /** The answer's WWW-Authenticate header. */
  challenge: string | null
  durationMs: number
}
