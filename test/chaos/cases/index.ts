import { answerCases } from './answers.ts'
import { betweenCases } from './between.ts'
import type { Case } from './case.ts'
import { decidedCases } from './decided.ts'
import { healingCases } from './healing.ts'
import { machineryCases } from './machinery.ts'
import { orderCases } from './order.ts'
import { planCases } from './plans.ts'
import { raceCases } from './races.ts'
import { recoveryCases } from './recovery.ts'
import { startCases } from './starts.ts'
import { stopCases } from './stop.ts'
import { upgradeCases } from './upgrades.ts'
import { waitingCases } from './waiting.ts'

export const cases: readonly Case[] = [
  ...stopCases,
  ...answerCases,
  ...waitingCases,
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
