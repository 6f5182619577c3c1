import { type CaseOptions, runCases } from './case-runner.ts'

// A process that runs cases one after the other, as its parent orders them. What a case leaves open ends with it.

export type Order = Pick<CaseOptions, 'names' | 'engines' | 'size' | 'servers'>
export type Report = { isGreen: boolean; said: string }

process.on('disconnect', () => process.exit())
process.on('message', async (order: Order) => {
  const lines: string[] = []
  const say = (line: string) => void lines.push(line)
  const isGreen = await runCases({ ...order, ownsServers: false, repeat: 1, say })
  process.send!({ isGreen, said: lines.join('\n') } satisfies Report)
})
