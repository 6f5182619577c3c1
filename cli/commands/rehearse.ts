import { Command } from '@commander-js/extra-typings'
import type { RehearsalAnswer } from '../../shared/rehearsal.ts'
import { rehearsalScenes } from '../../shared/vocabulary.ts'
import { Session } from '../connection/session.ts'
import { describeFindings } from '../doctor/findings.ts'
import { CliError, exitCodes } from '../errors.ts'
import { dryRunOption, examples } from '../options.ts'
import type { Colours } from '../output/output.ts'
import { count } from '../output/time.ts'
import { roomFor, wrap } from '../output/wrap.ts'
import type { Grade, Kind } from '../rehearse/judge.ts'
import { resolveId } from '../resources/ids.ts'

const REHEARSE = `mutation ($webhookId: UUID!, $scene: RehearsalScene!) {
  answers: rehearse(webhookId: $webhookId, scene: $scene) {
    delivery eventType vector isAdvisable statusCode failure detail challenge durationMs
  }
}`

export const rehearseCommand = () =>
  new Command('rehearse')
    .summary('try a receiver on everything that it must take, refuse and handle once')
    .description(
      'Has the server send a registered receiver, in whatever language, what it must accept (examples, types of a ' +
        'later version, a slow body), what it must refuse (forged, expired, for others) and what it must handle once ' +
        '(replays, retries, five at once), and says for each what to mend. The server signs all of it as it signs ' +
        'deliveries, and stores none. The payloads are examples, which the receiver’s handler gets. Some 280 ' +
        'requests, two at a time, for ten minutes at most. Exit code 6 if something has to be mended.',
    )
    .argument('<webhook>', 'the active webhook')
    .addOption(dryRunOption())
    .addHelpText(
      'after',
      examples(
        ['Is this receiver ready for production?', 'tidings rehearse ID'],
        ['In CI, against a receiver that was just started', 'tidings rehearse ID --output json'],
      ),
    )
    .action(async (named, _options, command) => {
      const session = new Session(command)
      const webhookId = await resolveId(session, 'webhooks', named)
      const { scenes, unseen } = await import('../rehearse/judge.ts')
      const checks: Rehearsed[] = []
      const endMs = performance.now() + LONGEST_MS
      if (session.dryRun)
        session.output.message(`The first of ${count(rehearsalScenes.length, 'request')}, one a scene:`)
      for (const scene of rehearsalScenes) {
        if (performance.now() > endMs) {
          checks.push({ ...LEFT_OUT, scene, kind: scenes[scene].kind, name: scenes[scene].name })
          continue
        }
        const { answers } = await session.graphql<{ answers: RehearsalAnswer[] }>(REHEARSE, { webhookId, scene })
        const { kind, name, judge } = scenes[scene]
        checks.push({ scene, kind, name, ...judge(answers), answers })
        // A receiver that cannot be reached fails everything, each after 15 s.
        if (scene === 'ping' && answers[0]?.statusCode == null) break
      }
      report(session, webhookId, checks, unseen)
    })

/** After so long no further scene begins. */
const LONGEST_MS = 10 * 60_000
const LEFT_OUT = {
  status: 'note',
  found: 'not tried: the scenes before took ten minutes',
  next: 'Answer sooner, and run this again.',
  answers: [] as RehearsalAnswer[],
} as const

type Rehearsed = Grade & { scene: string; kind: Kind; name: string; answers: RehearsalAnswer[] }

const TITLES: Record<Kind, string> = {
  accept: 'Must be taken',
  refuse: 'Must be refused',
  once: 'Must be handled once',
}

/** Prints the grades. Throws a CliError, exit code 6, if something has to be mended. */
const report = ({ output }: Session, webhookId: string, checks: Rehearsed[], unseen: readonly string[]): void => {
  const of = (status: Grade['status']) => checks.filter(check => check.status === status).length
  const [passed, notes, problems] = [of('ok'), of('note'), of('problem')]
  const row = { id: webhookId, ok: problems === 0, passed, notes, problems, checks, unseen }
  output.one(row, colours => `${describe(checks, colours)}\n${describeUnseen(unseen, colours)}`)
  if (problems === 0) {
    const more = notes === 0 ? '' : `, ${count(notes, 'thing')} to consider`
    output.message(`The receiver has passed: ${passed} of ${checks.length}${more}.`)
    return
  }
  throw new CliError(
    exitCodes.verificationFailed,
    'REHEARSAL_FAILED',
    `The receiver has failed ${problems} of ${checks.length}: ${checks
      .filter(({ status }) => status === 'problem')
      .map(({ name }) => name)
      .join(', ')}.`,
    'See for each what to mend. All rules, with their reasons, are in docs/receivers/README.md.',
  )
}

const describeUnseen = (unseen: readonly string[], colours: Colours): string =>
  [colours.bold('Cannot be seen from outside'), ...unseen.flatMap(it => wrap(`– ${it}`, roomFor(0)))].join('\n')

const describe = (checks: Rehearsed[], colours: Colours): string =>
  (Object.keys(TITLES) as Kind[])
    .map(kind => {
      const own = checks.filter(check => check.kind === kind)
      return own.length === 0 ? '' : `${colours.bold(TITLES[kind])}\n${describeFindings(own, colours)}`
    })
    .filter(part => part !== '')
    .join('\n')
