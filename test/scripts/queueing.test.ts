import assert from 'node:assert/strict'
import { describe, it } from 'node:test'
import { type Demands, throughput } from '../bench/queueing.ts'

const NOTHING: Demands = { server: 0, database: 0, receivers: 0, log: 0 }

describe('the queueing network of the benchmark cores', () => {
  it('does with n customers at two equal stations n / (n + 1) of what one station can', () => {
    const demands = { ...NOTHING, server: 2, database: 2 }
    for (const activities of [1, 2, 3, 10]) {
      const { perSecond } = throughput(demands, { processes: 1, activities, databaseCores: 1 })
      assert.ok(Math.abs(perSecond - (500 * activities) / (activities + 1)) < 1e-9)
    }
  })

  it('approaches what its busiest station can, and names it', () => {
    const demands = { ...NOTHING, server: 1, database: 8, log: 0.5 }
    const { perSecond, bottleneck } = throughput(demands, { processes: 8, activities: 50, databaseCores: 4 })
    assert.equal(bottleneck, 'database')
    assert.ok(perSecond > 495 && perSecond <= 500, String(perSecond))
    assert.equal(throughput(demands, { processes: 8, activities: 1, databaseCores: 32 }).bottleneck, 'log')
  })

  it('has one customer wait for nobody, however many cores a station has', () => {
    const demands = { server: 1, database: 2, receivers: 1, log: 1 }
    assert.equal(throughput(demands, { processes: 1, activities: 1, sharedCores: 2 }).perSecond, 200)
    assert.equal(throughput(demands, { processes: 1, activities: 1, databaseCores: 32 }).perSecond, 250)
  })
})
