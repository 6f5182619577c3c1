/** Silences knex, which prints on stdout what it also throws; stdout belongs to a command's output. */
export const knexLog = { debug() {}, warn() {}, error() {}, deprecate() {} }
