import { type Colours, cellText, describeFields, type Output, type View } from '../output/output.ts'
import { relativeIso } from '../output/time.ts'

/** A value with the colour that its status has everywhere: green is well, yellow is waiting, red needs somebody. */
export const statusCell = (status: string, colours: Colours): string => {
  const text = cellText(status)
  if (['active', 'delivered', 'approved', 'submitted'].includes(status)) return colours.green(text)
  if (['pending', 'open', 'inactive'].includes(status)) return colours.yellow(text)
  if (['rejected', 'dropped'].includes(status)) return colours.red(text)
  return colours.dim(text)
}

export const idColumn = { title: 'ID', cell: (row: { id: string }) => cellText(row.id) }

/** A column of times, told relative to now. */
export const timeColumn = <Row>(
  title: string,
  time: (row: Row) => string | null,
  nowMs: number,
): View<Row>['columns'][number] => ({
  title,
  cell: (row, colours) => colours.dim(cellText(relativeIso(time(row), nowMs))),
})

/** What has a name and an id besides, and nothing more to tell. */
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
