// CommonJS, since only that can choose its source without waiting: Node strips no types below node_modules, so the
// package carries the built files, and a checkout needs none.
const { existsSync } = require('node:fs')
const { createRequire } = require('node:module')
const path = require('node:path')

const source = path.join(__dirname, '../receiver/index.ts')
const isCheckout = !__dirname.split(path.sep).includes('node_modules') && existsSync(source)
// A bundler follows the plain require alone: the package has no other.
const { createReceiver, expressReceiver, fastifyReceiver, fetchReceiver, koaReceiver, memoryReplayStore, RetryLater } =
  isCheckout ? createRequire(__filename)(source) : require('../dist/receiver/index.js')

// Each by its name: Node reads here the names that `import` may ask for.
module.exports = {
  createReceiver,
  expressReceiver,
  fastifyReceiver,
  fetchReceiver,
  koaReceiver,
  memoryReplayStore,
  RetryLater,
}
