// The process of a reader, which a server starts (server/readers/child.ts).
const { load } = require('./program.js')

load('server/readers/reader', 'reader').catch(error => {
  console.error(`tidings: ${error.message}`)
  process.exit(1)
})
