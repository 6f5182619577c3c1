import program from '../../bin/program.js'

// Imported by what is preloaded into a server that shall run its sources, and not the script that was made of them.

program.loadScript = () => undefined
