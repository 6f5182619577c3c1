import type { DeliveryStatus, ReportStatus, WebhookStatus } from '../../shared/vocabulary.ts'
import { type Colours, cellText, describeFields, type Output, type View } from '../output/output.ts'
import { relativeIso } from '../output/time.ts'
import { entryFor } from '../output/words.ts'

type Status = DeliveryStatus | WebhookStatus | ReportStatus

/** Green is healthy, yellow is waiting, red needs attention. */
const COLOURS: Record<Status, 'green' | 'yellow' | 'red' | 'dim'> = {
  active: 'green',
  inactive: 'yellow',
  disabled: 'dim',
  pending: 'yellow',
  delivered: 'green',
  rejected: 'red',
  dropped: 'red',
  cancelled: 'dim',
  open: 'yellow',
  submitted: 'green',
  approved: 'green',
}

/** The colour that a status has everywhere. */
export const statusColour = (status: Status, colours: Colours): ((text: string) => string) =>
  colours[entryFor(COLOURS, status) ?? 'dim']

export const statusCell = (status: Status, colours: Colours): string => statusColour(status, colours)(cellText(status))

/** An active webhook whose deliveries all fail is no healthier than an inactive one. */
export const webhookStatusCell = (
  { status, health }: { status: WebhookStatus; health: Partial<Record<DeliveryStatus, number>> },
  colours: Colours,
): string => (onlyFails(health) && status === 'active' ? colours.red(cellText(status)) : statusCell(status, colours))

/** Whether deliveries of the last 24 hours exist and none arrived. */
export const onlyFails = ({ delivered = 0, rejected = 0, dropped = 0 }: Partial<Record<DeliveryStatus, number>>) =>
  delivered === 0 && rejected + dropped > 0

/** A webhook as a related object: some of its fields, or none if the token may not read it. */
type NamedWebhook = { name?: string | null; url?: string } | null | undefined

/** A webhook's name, or else its URL; its id if neither may be read. */
export const calledWebhook = (webhook: NamedWebhook, id: string): string =>
  cellText(webhook?.name || webhook?.url || id)

/** `team=payments, env=live`. */
export const labelsCell = (labels: Record<string, string>): string =>
  cellText(
    Object.entries(labels)
      .map(([key, value]) => `${key}=${value}`)
      .join(', '),
  )

export const idColumn = { title: 'ID', isId: true as const, cell: (row: { id: string }) => cellText(row.id) }

/** A column of times relative to now. */
export const timeColumn = <Row>(
  title: string,
  time: (row: Row) => string | null,
  nowMs: number,
): View<Row>['columns'][number] => ({
  title,
  cell: (row, colours) => colours.dim(cellText(relativeIso(time(row), nowMs))),
})

/** The columns of objects with only a name and an id. */
export const printNamed = (output: Output, row: { id: string; name: string }): void =>
  output.one(row, colours =>
    describeFields(
      [
        ['ID', cellText(row.id)],
        ['Name', cellText(row.name)],
      ],
      colours,
    ),
  )
