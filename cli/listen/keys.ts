import type { Session } from '../connection/session.ts'
import { cellText } from '../output/output.ts'
import { describeFully } from './arrival-output.ts'
import type { Arrival, LocalReceiver } from './receiver.ts'
import type { ScriptedResponse } from './scripted-responses.ts'

const HELP = 'Keys: r sends the last one again, d shows it in full, n chooses the next answer, q ends.'
const INTERRUPT = '\u0003'

/** The answers that the key n cycles through; the last one is the configured answer. */
const ANSWERS: [label: string, answer: ScriptedResponse | undefined][] = [
  ['500', { kind: 'status', statusCode: 500 }],
  ['400', { kind: 'status', statusCode: 400 }],
  ['429, with Retry-After: 30', { kind: 'status', statusCode: 429, retryAfterSeconds: 30 }],
  ['no answer: the connection is reset', { kind: 'reset' }],
  ['as usual', undefined],
]

/**
 * Handles keys while deliveries come; does nothing without a terminal.
 *
 * @param given.last returns the last delivery
 * @returns the function that ends it and restores the terminal
 */
export const listenForKeys = (
  session: Session,
  given: { receiver: LocalReceiver; last: () => Arrival | undefined; end: () => void },
): (() => void) => {
  const { stdin } = process
  const { output } = session
  if (!stdin.isTTY || !output.onTerminal) return () => {}
  let chosen = ANSWERS.length - 1

  const chooseNext = (): void => {
    chosen = (chosen + 1) % ANSWERS.length
    const [label, answer] = ANSWERS[chosen]!
    given.receiver.answerNext(answer, () => {
      chosen = ANSWERS.length - 1
    })
    output.message(`The next delivery is answered: ${label}.`)
  }

  const press = (pressed: Buffer): void => {
    const key = pressed.toString().charAt(0)
    if (key === INTERRUPT) process.kill(process.pid, 'SIGINT')
    if (key === 'q') given.end()
    if (key === '?') output.message(HELP)
    if (key === 'n') chooseNext()
    if (key !== 'r' && key !== 'd') return
    const last = given.last()
    if (!last) output.message('Nothing has come yet.')
    else if (key === 'd') output.data(describeFully(last, output.colours))
    else if (last.eventId !== undefined) sendAgain(session, last.eventId)
  }

  stdin.setRawMode(true)
  stdin.on('data', press).resume()
  output.message(HELP)
  return () => {
    stdin.off('data', press)
    stdin.setRawMode(false)
    stdin.pause()
  }
}

const sendAgain = async (session: Session, id: string): Promise<void> => {
  const { output } = session
  try {
    const { made } = await session.graphql<{ made: { id: string } }>(
      'mutation ($id: UUID!) { made: redeliver(deliveryId: $id) { id } }',
      { id },
    )
    output.message(`Queued again as ${cellText(made.id)}.`)
  } catch (error) {
    output.warning((error as Error).message)
  }
}
