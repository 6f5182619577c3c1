// CommonJS, since only that can choose its source without waiting: Node strips no types below node_modules, so the package
// carries the built files, and a checkout needs none.
const { existsSync } = require('node:fs')
const { createRequire } = require('node:module')
const path = require('node:path')

const source = path.join(__dirname, '../receiver/index.ts')
const isCheckout = !__dirname.split(path.sep).includes('node_modules') && existsSync(source)
// A bundler follows the plain require alone: the package has no other.
module.exports = isCheckout ? createRequire(__filename)(source) : require('../dist/receiver/index.js')

// Never run: here Node reads the names that `import` may ask for.
0 &&
  // biome-ignore lint/suspicious/noAssignInExpressions: the form that Node looks for
  (module.exports = {
    createReceiver,
    expressReceiver,
    fastifyReceiver,
    fetchReceiver,
    koaReceiver,
    memoryReplayStore,
    RetryLater,
  })
