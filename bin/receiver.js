// CommonJS, since only that can choose its source without waiting: Node strips no types below node_modules, so the package
// carries the built files, and a checkout needs none.
const path = require('node:path')

const isPackage = __dirname.split(path.sep).includes('node_modules')
module.exports = isPackage ? require('../dist/receiver/index.js') : require('../receiver/index.ts')

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
