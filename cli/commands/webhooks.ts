import { randomUUID } from 'node:crypto'
import { Command, Option } from '@commander-js/extra-typings'
import {
  eventTypes,
  type WebhookRecovery,
  type WebhookSigning,
  webhookOrderings,
  webhookSignings,
  webhookStatuses,
  webhookTransports,
} from '../../shared/vocabulary.ts'
import { graphql } from '../connection/client.ts'
import { Session } from '../connection/session.ts'
import { CliError, exitCodes, usageError } from '../errors.ts'
import { collect, dryRunOption, examples, filterList, gather, labelsOf, yesOption } from '../options.ts'
import { cellText, type View } from '../output/output.ts'
import { confirm } from '../output/prompt.ts'
import { count } from '../output/time.ts'
import { calledWebhook, idColumn, labelsCell, timeColumn, webhookStatusCell } from '../resources/cells.ts'
import { idToChange, resolveId, resolveIds } from '../resources/ids.ts'
import { list, listCommand } from '../resources/listing.ts'
import { dryRunOfMany, forEach, givenIds } from '../resources/many.ts'
import { type Delivery, deliveryFields, describeAttempt } from '../resources/timeline.ts'
import {
  createWebhook,
  describeHealth,
  findWebhook,
  lookAtWebhook,
  printWebhook,
  settableStatuses,
  unlessForbidden,
  upsertWebhook,
  type Webhook,
  type WebhookInput,
  webhookFields,
} from '../resources/webhook.ts'
import { mustShowSecret, readHeadersFile, readSecretFile } from '../resources/webhook-secrets.ts'
import { recoverCommand } from './webhooks-recover.ts'
import { rotateSecretCommand } from './webhooks-rotate-secret.ts'

export const webhooksCommand = () =>
  new Command('webhooks')
    .description(
      'The endpoints that receive events: the events, organisations and projects that each is limited to, ' +
        'and the health of each.',
    )
    .addCommand(createCommand())
    .addCommand(listWebhooksCommand())
    .addCommand(showCommand())
    .addCommand(updateCommand())
    .addCommand(enableCommand())
    .addCommand(disableCommand())
    .addCommand(deleteCommand())
    .addCommand(pingCommand())
    .addCommand(recoverCommand())
    .addCommand(rotateSecretCommand())
    .addHelpText(
      'after',
      examples(
        ['Register an endpoint', 'tidings webhooks create https://example.com/hooks'],
        ['Which are healthy?', 'tidings webhooks list'],
        ['Send again after an outage', 'tidings webhooks recover ID --since 2h'],
      ),
    )

const CREATE_EXAMPLES = examples(
  ['Every event that the access token may see', 'tidings webhooks create https://example.com/hooks'],
  [
    'Two types of event of one organisation',
    'tidings webhooks create https://example.com/hooks --events ' +
      'project_report_quarterly_submitted,project_report_quarterly_approved --organisation ID',
  ],
  ['In the order of each project', 'tidings webhooks create https://example.com/hooks --ordering project'],
  [
    'Signed by Standard Webhooks too, which libraries in many languages verify',
    'tidings webhooks create https://example.com/hooks --signing standard',
  ],
  [
    'With a name, and a label to find it by',
    'tidings webhooks create https://example.com/hooks --name Ledger --label team=payments',
  ],
  [
    'It gets by itself what it missed while it was away',
    'tidings webhooks create https://example.com/hooks --recover automatically',
  ],
  ['Keep its id', 'tidings webhooks create https://example.com/hooks --output id > webhook.id'],
  ['An id of your own, in a script that may run again', 'tidings webhooks upsert https://example.com/hooks --id ID'],
  ['All webhooks of a file; --dry-run shows the changes first', 'tidings webhooks create --file webhooks.json'],
  [
    'One line of the file; a JSON array works too',
    `echo '{"url":"https://example.com/a","events":["token_expired"]}' > webhooks.json`,
  ],
)

const createUsage = () =>
  new Command('create')
    .alias('upsert')
    .summary('register an endpoint, or all endpoints of a file')
    .description(
      'Registers an endpoint. The server pings it first, and stores it only if it answers exactly 200. ' +
        'With --id it can be repeated: a webhook that has the id is changed as given. ' +
        'With --file it applies all webhooks of a file: creates missing ones, ' +
        'changes those that differ, and leaves the rest alone, so that it can be repeated. ' +
        'An entry without an id means the webhook with its URL.',
    )
    .argument('[url]', 'the endpoint, exactly as the audience of delivery tokens will name it')
    .option('-f, --file <path>', 'webhooks as a JSON array, or one a line; - for standard input')
    .option('--id <id>', 'its id, of your choice; or id or name of one to change, so that repeating is safe')
    .option('--name <name>', 'its name, accepted wherever its id is')
    .option('--label <key=value>', 'a label to find it by, such as team=payments (repeatable)', gather)
    .option('-e, --events <types>', 'only these event types (comma-separated or repeated)', collect)
    .option('--organisation <id>', 'only events of this organisation (repeatable)', collect)
    .option('--project <id>', 'also events of this project (repeatable)', collect)
    .addOption(orderingOption())
    .addOption(transportOption())
    .addOption(recoverOption())
    .addOption(signingOption())
    .option('--secret-file <path>', 'your own secret (whsec_…) for --signing standard; - for standard input')
    .option('--headers-file <path>', 'static headers for a gateway, one `Name: value` a line; - for standard input')
    .addOption(yesOption())
    .addOption(dryRunOption())
    .addHelpText(
      'after',
      `\nEvent types:\n${eventTypes.map(type => `  ${type}`).join('\n')}\n` +
        'A ping is sent on registration and on request; it cannot be chosen.\n' +
        'The last two are about other webhooks, and go only to webhooks that name them.',
    )
    .addHelpText('after', CREATE_EXAMPLES)

const createCommand = () =>
  createUsage().action(async (url, options, command) => {
    const session = new Session(command)
    if (options.file !== undefined) {
      const { file: _file, yes: _yes, dryRun: _dryRun, ...others } = options
      if ([url, ...Object.values(others)].some(each => each !== undefined)) {
        throw usageError('--file already says everything.', 'Remove the URL and every option that describes a webhook.')
      }
      const { applyWebhookFile } = await import('./webhooks-apply.ts')
      return applyWebhookFile(session, options.file)
    }
    if (url === undefined && options.transport !== 'pull')
      throw usageError('No endpoint is given.', 'Give its URL, or a file with --file.')
    await create(session, url, options)
  })

type Creation = Parameters<typeof carried>[0] &
  Parameters<typeof named>[0] &
  Parameters<typeof filters>[1] & {
    id?: string | undefined
    ordering?: WebhookInput['ordering'] | undefined
    transport?: WebhookInput['transport'] | undefined
    recover?: keyof typeof RECOVERIES | undefined
  }

/** Creates a webhook, or changes the one that has the id. */
const create = async (session: Session, url: string | undefined, options: Creation): Promise<void> => {
  const { output } = session
  const own = carried(options)
  if (own.signing === 'standard' && !session.dryRun) mustShowSecret(session, own.secret)
  const id = await idToChange(session, 'webhooks', options.id)
  const limits = await filters(session, options)
  const isKnown = id !== undefined && !session.dryRun && (await isThere(session, id))
  const pulled = options.transport === 'pull' && !isKnown && !session.dryRun ? announce(session, id) : undefined
  const chosen = pulled?.id ?? id
  const { webhook } = await session.graphql<{ webhook: Webhook }>(
    chosen === undefined ? createWebhook : upsertWebhook,
    given({
      ...(chosen !== undefined && { id: chosen }),
      url,
      ...named(options),
      ...limits,
      ordering: options.ordering,
      transport: options.transport,
      recovery: recoveryOf(options.recover),
      ...own,
    } satisfies Omit<GivenInput, 'status'> & { id?: string }),
  )
  pulled?.end()
  output.message(
    isKnown || webhook.createdAt !== webhook.updatedAt
      ? 'There was a webhook with this id: it has now what is given.'
      : pulled
        ? 'This command has pulled the ping, and the webhook is registered. Let clients take its deliveries.'
        : 'The endpoint answered its ping with 200 and is registered.',
  )
  printWebhook(session, webhook)
  if (webhook.secret) output.message(SHOWN_ONCE)
  await warnOfOthers(session, webhook)
}

type Found = { webhooks: { id: string }[] }
const FIND = 'query ($query: MangoQuery) { webhooks(query: $query) { id } }'

/** False if the access token may not read. */
const isThere = async (session: Session, id: string): Promise<boolean> => {
  const found = await session.ask<Found>(FIND, { query: { selector: { id } } }).catch(unlessForbidden)
  return found !== undefined && found.webhooks.length > 0
}

/** The webhook is created by now, so nothing that goes wrong here is an error. */
const warnOfOthers = async (session: Session, { id, url, transport }: Webhook): Promise<void> => {
  if (transport === 'pull') return
  const query = { selector: { url, id: { $ne: id } }, sort: [{ id: 'desc' }], limit: 5 }
  const found = await session.look<Found>(FIND, { query }).catch(() => undefined)
  const others = found?.webhooks?.map(other => cellText(other.id)) ?? []
  if (others.length === 0) return
  session.output.warning(
    `This URL had a webhook already: ${others.join(', ')}. Each is sent every event that it asks for. ` +
      `To change one instead: tidings webhooks update ${others[0]}`,
  )
}

const SHOWN_ONCE = 'The secret is not shown again. Put it where the receiver reads it.'

/** Waits for a webhook that is about to be created under a new id, and answers its ping. */
const announce = (session: Session, id: string = randomUUID()): { id: string; end: () => void } => {
  const ending = new AbortController()
  const pull = async (): Promise<void> => {
    const patience = { timeoutMs: 40_000, signal: ending.signal }
    const { taken } = await graphql<{ taken: { deliveryId: string; attempt: number; body: string }[] }>(
      session.connection,
      'mutation ($id: UUID!) { taken: takeDeliveries(webhookId: $id, waitSeconds: 30) { deliveryId attempt body } }',
      { id },
      patience,
    )
    // A webhook that this access token may not read may exist: its events are for its clients alone.
    const pings = taken.filter(({ body }) => JSON.parse(body).eventType === 'ping')
    const answers = pings.map(({ deliveryId, attempt }) => ({ deliveryId, attempt, status: 200 }))
    const answer = 'mutation ($answers: [DeliveryAnswer!]!) { answerDeliveries(answers: $answers) { counted } }'
    await graphql(session.connection, answer, { answers }, patience)
  }
  // If it fails, so does the registration, which says why.
  pull().catch(() => {})
  return { id, end: () => ending.abort() }
}

const listWebhooksCommand = () =>
  listCommand()
    .summary('list webhooks')
    .description('Lists the webhooks that the access token may see, newest first.')
    .addOption(new Option('--status <status>', 'only those in this status').choices(webhookStatuses))
    .addHelpText(
      'after',
      examples(
        ['Those that receive nothing any more, and why', `tidings webhooks list --status inactive`],
        ['Those of one team', `tidings webhooks list --selector '{"labels.team":"payments"}' --sort name`],
        ['Their number for each team', 'tidings webhooks list --count --by labels.team'],
        ['By any field', `tidings webhooks list --selector '{"url":{"$regex":"example[.]com"}}'`],
        ['For a script', `tidings webhooks list --output json | jq -r '.[].url'`],
      ),
    )
    .action(async (options, command) => {
      const session = new Session(command)
      await list<Webhook>(session, options, {
        resource: 'webhooks',
        noun: ['webhook', 'webhooks'],
        fields: webhookFields,
        view: view(session.output.nowMs),
        conditions: options.status ? [{ status: options.status }] : [],
        sort: [{ createdAt: 'desc' }],
      })
    })

const showCommand = () =>
  new Command('show')
    .summary('show one webhook, its filters and its health')
    .argument('<id>', 'the webhook’s id')
    .addOption(dryRunOption())
    .addHelpText('after', examples(['Its filters and its health', 'tidings webhooks show ID']))
    .action(async (id, _options, command) => {
      const session = new Session(command)
      printWebhook(session, await findWebhook(session, await resolveId(session, 'webhooks', id)))
    })

const updateUsage = () =>
  new Command('update')
    .summary('change what a webhook receives, and where')
    .description(
      'Changes what is given and leaves the rest. A new URL, or a webhook made active, must answer a ping first.',
    )
    .argument('<id>', 'the webhook’s id')
    .option('--endpoint <url>', 'send to this URL from now on')
    .option('--name <name>', 'its name; empty for none')
    .option('--label <key=value>', 'these labels (repeatable) in place of those it has, or: none', gather)
    .option('-e, --events <types>', 'only these event types, or: all', collect)
    .option('--organisation <id>', 'only events of this organisation (repeatable), or: all', collect)
    .option('--project <id>', 'also events of this project (repeatable), or: all', collect)
    .addOption(orderingOption())
    .addOption(transportOption())
    .addOption(recoverOption())
    .addOption(signingOption())
    .option('--secret-file <path>', 'your own secret (whsec_…) for --signing standard; - for standard input')
    .option(
      '--headers-file <path>',
      'static headers in place of those it has, one `Name: value` a line; - for standard input',
    )
    .addOption(new Option('--status <status>', 'active, or disabled').choices(settableStatuses))
    .addOption(yesOption())
    .addOption(dryRunOption())
    .addHelpText(
      'after',
      examples(
        ['Move it', 'tidings webhooks update ID --endpoint https://example.com/new'],
        ['Call it something', 'tidings webhooks update ID --name Ledger --label team=payments --label env=live'],
        ['Remove the filter on event types', 'tidings webhooks update ID --events all'],
        ['Send the events of each project in their order', 'tidings webhooks update ID --ordering project'],
      ),
    )

const updateCommand = () =>
  updateUsage().action(async (id, options, command) => {
    const { endpoint, ordering, transport, status } = options
    const session = new Session(command)
    const changes = given({
      url: endpoint || undefined,
      ...named(options),
      ...(await filters(session, options)),
      ordering,
      transport,
      recovery: recoveryOf(options.recover),
      ...carried(options),
      status,
    } satisfies GivenInput)
    if (Object.keys(changes).length === 0) {
      throw usageError(
        'Nothing to change is given.',
        'Name at least one of --endpoint, --name, --label, --events, --organisation, --project, --ordering, ' +
          '--transport, --recover, --signing, --secret-file, --headers-file, --status.',
      )
    }
    await change(session, id, changes)
  })

const enableCommand = () =>
  new Command('enable')
    .summary('make a webhook active again')
    .description('Makes a disabled or inactive webhook active again. Its endpoint must answer a ping with 200 first.')
    .argument('<ids...>', 'ids of webhooks; - reads them from standard input, one a line')
    .addOption(dryRunOption())
    .addHelpText(
      'after',
      examples(
        ['When the endpoint works again', 'tidings webhooks enable ID'],
        ['All that are inactive', 'tidings webhooks list --status inactive --output id | tidings webhooks enable -'],
      ),
    )
    .action(async (given, _options, command) => changeStatus(new Session(command), given, 'active'))

const disableCommand = () =>
  new Command('disable')
    .summary('stop sending to a webhook')
    .description(
      'Stops sending to a webhook and cancels its pending deliveries. The webhook is kept, and can be enabled again.',
    )
    .argument('<ids...>', 'ids of webhooks; - reads them from standard input, one a line')
    .addOption(yesOption())
    .addOption(dryRunOption())
    .addHelpText(
      'after',
      examples(
        ['After a confirmation', 'tidings webhooks disable ID'],
        ['In a script', 'tidings webhooks disable ID --yes'],
      ),
    )
    .action(async (given, _options, command) => changeStatus(new Session(command), given, 'disabled'))

const DELETE = 'mutation ($id: UUID!) { id: deleteWebhook(id: $id) }'

const deleteUsage = () =>
  new Command('delete')
    .alias('rm')
    .summary('delete a webhook that is disabled')
    .description(
      'Deletes a webhook for good. Disable it first. Its deliveries stay visible until their ' + 'retention ends.',
    )
    .argument('<ids...>', 'ids of webhooks; - reads them from standard input, one a line')
    .addOption(yesOption())
    .addOption(dryRunOption())
    .addHelpText(
      'after',
      examples(
        ['One that is no longer needed', 'tidings webhooks disable ID && tidings webhooks delete ID'],
        [
          'All that are disabled',
          'tidings webhooks list --status disabled --output id | tidings webhooks delete - --yes',
        ],
      ),
    )

const deleteCommand = () =>
  deleteUsage().action(async (given, _options, command) => {
    const session = new Session(command)
    const ids = givenIds(given)
    if (session.dryRun) {
      return dryRunOfMany(session, ids, ['webhook', 'webhooks'], async one =>
        session.graphql(DELETE, { id: await idToChange(session, 'webhooks', one) }),
      )
    }
    const [first] = ids
    const isOne = ids.length === 1 && !given.includes('-')
    if (!isOne && ids.length > 0) await confirm(`Delete ${count(ids.length, 'webhook')} for good?`, session)
    const remove = async (one: string): Promise<{ id: string }> => {
      const id = await idToChange(session, 'webhooks', one)
      const known = isOne ? await lookAtWebhook(session, id) : undefined
      if (isOne) await confirm(`Delete ${calledWebhook(known, id)} for good?`, session)
      return session.graphql<{ id: string }>(DELETE, { id }).catch(error => {
        throw isNotDisabled(error) ? new CliError(error.exitCode, error.code, error.message, DISABLE_FIRST(id)) : error
      })
    }
    if (!isOne) {
      return forEach(session, ids, ['webhook', 'webhooks'], async one => ({
        ...(await remove(one)),
        outcome: 'deleted',
      }))
    }
    const { id } = await remove(first!)
    session.output.one({ id }, () => '')
    session.output.message(
      `The webhook is deleted. What was sent to it: tidings deliveries list --selector '{"webhookId":"${id}"}'`,
    )
  })

const isNotDisabled = (error: unknown): error is CliError => error instanceof CliError && error.code === 'CONFLICT'
const DISABLE_FIRST = (id: string): string => `Disable it first: tidings webhooks disable ${id}`

const pingCommand = () =>
  new Command('ping')
    .summary('send a ping event and wait for the answer')
    .argument('<id>', 'the webhook’s id')
    .addOption(dryRunOption())
    .addHelpText('after', examples(['Does the endpoint accept our tokens?', 'tidings webhooks ping ID']))
    .action(async (given, _options, command) => {
      const session = new Session(command)
      const id = await resolveId(session, 'webhooks', given)
      const { delivery } = await session.graphql<{ delivery: Delivery }>(
        `mutation ($id: UUID!) { delivery: pingWebhook(id: $id) { ${deliveryFields} } }`,
        { id },
      )
      session.output.one(delivery, colours =>
        delivery.attempts.map(attempt => `${describeAttempt(attempt, colours)}\n`).join(''),
      )
      if (delivery.status === 'delivered') return
      throw new CliError(
        exitCodes.failed,
        'PING_NOT_DELIVERED',
        `The ping was not delivered: it is ${cellText(delivery.status)}.`,
        `See the attempts with: tidings deliveries show ${cellText(delivery.id)}`,
      )
    })

/** Runs for one or many, after one confirmation. */
const changeStatus = async (session: Session, given: string[], status: 'active' | 'disabled'): Promise<void> => {
  const ids = givenIds(given)
  if (session.dryRun)
    return dryRunOfMany(session, ids, ['webhook', 'webhooks'], one => change(session, one, { status }))
  if (ids.length === 1 && !given.includes('-')) return change(session, ids[0]!, { status })
  if (status === 'disabled' && ids.length > 0) {
    await confirm(`Disable ${count(ids.length, 'webhook')} and cancel what is waiting to be sent to them?`, session)
  }
  await forEach(session, ids, ['webhook', 'webhooks'], async one => {
    const id = await idToChange(session, 'webhooks', one)
    await lookAtWebhook(session, id)
    const { webhook } = await session.graphql<{ webhook: Webhook }>(upsertWebhook, { id, status })
    return { id, outcome: webhook.status }
  })
}

/** Changes a webhook; asks first if that would cancel pending deliveries. */
const change = async (session: Session, named: string, changes: Partial<WebhookInput>): Promise<void> => {
  const id = await idToChange(session, 'webhooks', named)
  let known: Webhook | undefined
  if (!session.dryRun) {
    // The API's upsert would create an unknown id, but a change needs an existing webhook.
    known = await lookAtWebhook(session, id)
    if (changes.status === 'disabled') {
      await confirm(`Disable ${calledWebhook(known, id)} and cancel what is waiting to be sent to it?`, session)
    }
  }
  if (changes.signing === 'standard' && known?.signing !== 'standard' && !session.dryRun) {
    mustShowSecret(session, changes.secret)
  }
  const { webhook } = await session.graphql<{ webhook: Webhook }>(upsertWebhook, { id, ...changes })
  // Created by this call; a token without the permission read could not know.
  if (!known && webhook.createdAt === webhook.updatedAt) {
    session.output.warning('There was no webhook with this id: it was created.')
  }
  session.output.message(`The webhook is ${cellText(webhook.status)}.`)
  if (changes.status === 'active') {
    session.output.message(`What it missed meanwhile is sent with: tidings webhooks recover ${id} --since 1d`)
  }
  printWebhook(session, webhook)
  if (webhook.secret) session.output.message(SHOWN_ONCE)
}

const orderingOption = () =>
  new Option(
    '--ordering <by>',
    'project: the events of one project arrive in the order they happened, each after the end of the one before; ' +
      'or none',
  ).choices(webhookOrderings)

const transportOption = () =>
  new Option(
    '--transport <how>',
    'push: deliveries are sent to the URL; or pull: clients take them, and no URL is given',
  ).choices(webhookTransports)
/** How the options write a recovery. */
const RECOVERIES = { 'on-demand': 'on_demand', automatically: 'automatic' } as const satisfies Record<
  string,
  WebhookRecovery
>

const recoverOption = () =>
  new Option(
    '--recover <how>',
    'automatically: once a delivery was dropped, the endpoint is pinged until it is well, and gets what it missed; ' +
      'or on-demand',
  ).choices(['automatically', 'on-demand'] as const)

const recoveryOf = (recover: keyof typeof RECOVERIES | undefined) =>
  recover === undefined ? undefined : RECOVERIES[recover]

const signingOption = () =>
  new Option(
    '--signing <by>',
    'standard: signed by Standard Webhooks beside the token, with a secret that is shown once; or token',
  ).choices(webhookSignings)

/** The fields that the options set; undefined for the others. */
type GivenInput = { [Name in Exclude<keyof WebhookInput, 'id'>]: WebhookInput[Name] | undefined }

const given = (input: Partial<GivenInput>): Partial<WebhookInput> =>
  Object.fromEntries(Object.entries(input).filter(([, value]) => value !== undefined))

const named = ({ name, label }: { name?: string | undefined; label?: string[] | undefined }) => ({
  name,
  labels: labelsOf(label),
})

const carried = (options: {
  signing?: WebhookSigning | undefined
  secretFile?: string | undefined
  headersFile?: string | undefined
}) => ({
  signing: options.signing,
  secret: options.secretFile === undefined ? undefined : readSecretFile(options.secretFile),
  headers: options.headersFile === undefined ? undefined : readHeadersFile(options.headersFile),
})

const filters = async (
  session: Session,
  options: {
    events?: string[] | undefined
    organisation?: string[] | undefined
    project?: string[] | undefined
  },
) => ({
  events: filterList(options.events),
  organisationIds: await resolveIds(session, 'organisations', filterList(options.organisation)),
  projectIds: await resolveIds(session, 'projects', filterList(options.project)),
})

const view = (nowMs: number): View<Webhook> => ({
  columns: [
    idColumn,
    { title: 'STATUS', cell: webhookStatusCell },
    { title: 'NAME', shrinks: 'end', optional: true, cell: row => cellText(row.name || null) },
    { title: 'URL', shrinks: 'url', cell: row => cellText(row.url) },
    {
      title: 'EVENTS',
      shrinks: 'end',
      optional: true,
      cell: row => (row.events.length === 0 ? 'all' : cellText(row.events.join(', '))),
    },
    { ...timeColumn<Webhook>('LAST DELIVERY', row => row.lastDeliveryAt, nowMs), optional: true },
    { title: 'LAST 24 H', shrinks: 'end', cell: (row, colours) => describeHealth(row.health, colours) },
    { title: 'LABELS', shrinks: 'end', optional: true, cell: row => labelsCell(row.labels ?? {}) },
  ],
  empty:
    'No webhooks. Register an endpoint with: tidings webhooks create URL. Or receive on this machine with: ' +
    'tidings listen --register',
})
