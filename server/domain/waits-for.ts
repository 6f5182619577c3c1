import type { Field, Resource } from '../mango/resource.ts'

/**
 * For each delivery that waits in a line (`lines.ts`), the delivery that has the turn; the earliest, if several have
 * it.
 */
export const waitsForOf = (deliveries: () => Resource): Extract<Field, { kind: 'derived' }> => ({
  kind: 'derived',
  row: deliveries,
  load: async (source, deliveryIds) => {
    const found: { delivery_id: string; first: string }[] = await source
      .connection('ordered_deliveries as o')
      .select('o.delivery_id')
      .min({ first: 't.delivery_id' })
      .join('ordered_deliveries as t', join => join.on('t.line', 'o.line').andOnVal('t.waits', 0))
      .whereIn('o.delivery_id', deliveryIds)
      .where('o.waits', 1)
      .groupBy('o.delivery_id')
    return new Map(found.map(row => [row.delivery_id, row.first]))
  },
})
