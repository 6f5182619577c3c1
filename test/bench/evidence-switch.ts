import diagnostics, { type ChannelListener } from 'node:diagnostics_channel'
import { syncBuiltinESMExports } from 'node:module'
import { isMainThread } from 'node:worker_threads'

// Loaded into a server with --import: SIGUSR2 turns the evidence of attempts off, a second one on again. Without the
// message that a request is written, the sender keeps none, and its columns stay empty.

let isOn = true
if (isMainThread) process.on('SIGUSR2', () => (isOn = !isOn))

const { subscribe } = diagnostics
diagnostics.subscribe = (name: string | symbol, listener: ChannelListener): void =>
  subscribe(name, name === 'undici:client:sendHeaders' ? (...given) => isOn && listener(...given) : listener)
syncBuiltinESMExports()
