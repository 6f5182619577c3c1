import { probe } from './probe.mjs'

console.log(JSON.stringify(await probe()))
