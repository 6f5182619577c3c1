import { answerCases } from './answers.ts'
import { awayCases } from './away.ts'
import { betweenCases } from './between.ts'
import { type Case, pulled } from './case.ts'
import { decidedCases } from './decided.ts'
import { healingCases } from './healing.ts'
import { machineryCases } from './machinery.ts'
import { orderCases } from './order.ts'
import { planCases } from './plans.ts'
import { pulledCases } from './pulled.ts'
import { raceCases } from './races.ts'
import { recoveryCases } from './recovery.ts'
import { startCases } from './starts.ts'
import { stopCases } from './stop.ts'
import { upgradeCases } from './upgrades.ts'
import { waitingCases } from './waiting.ts'

const ofEndpoints: readonly Case[] = [
  ...stopCases,
  ...answerCases,
  ...waitingCases,
  ...awayCases,
  ...planCases,
  ...orderCases,
  ...recoveryCases,
  ...healingCases,
  ...betweenCases,
  ...decidedCases,
  ...machineryCases,
  ...raceCases,
  ...startCases,
  ...upgradeCases,
]

/** The cases that hold for clients that pull as well. In the others there is no connection, or no endpoint. */
const PULLED = new Set([
  ...['disabled', 'url-changed', 'held-elsewhere', 'sight-lost-token', 'sight-lost-project', 'disk-full'],
  ...['group-replication', 'stall', 'stall-last-retry', 'stall-ping', 'dark-claim', 'order-stalled'],
  ...['order-slow-commit', 'order-changed', 'paused-then-url', 'old-pause', 'late-429'],
])

export const cases: readonly Case[] = [
  ...ofEndpoints,
  ...pulledCases,
  ...ofEndpoints.filter(it => PULLED.has(it.name)).map(pulled),
]
