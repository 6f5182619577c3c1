import type { Sql } from '../database/connect.ts'
import type { Field, Resource, Visible } from '../mango/resource.ts'

/**
 * For each delivery that waits in a line (`lines.ts`), the visible delivery that has the turn; the earliest, if several
 * have it.
 *
 * @param seen narrows a SELECT of deliveries to the visible ones
 */
export const turnsOf = async (sql: Sql, deliveryIds: string[], seen: Visible): Promise<Map<string, string>> => {
  const found: { delivery_id: string; first: string }[] = await sql('ordered_deliveries as o')
    .select('o.delivery_id')
    .min({ first: 't.delivery_id' })
    .join('ordered_deliveries as t', join => join.on('t.line', 'o.line').andOnVal('t.waits', 0))
    .join('deliveries', 'deliveries.id', 't.delivery_id')
    .modify(seen)
    .whereIn('o.delivery_id', deliveryIds)
    .where('o.waits', 1)
    .groupBy('o.delivery_id')
  return new Map(found.map(row => [row.delivery_id, row.first]))
}

export const waitsForOf = (deliveries: () => Resource): Extract<Field, { kind: 'derived' }> => ({
  kind: 'derived',
  row: deliveries,
  load: ({ connection, seen }, deliveryIds) => turnsOf(connection, deliveryIds, seen(deliveries())),
})
