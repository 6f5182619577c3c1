/** Knex prints on stdout what it throws as well, and stdout belongs to what a command prints. */
export const knexLog = { debug() {}, warn() {}, error() {}, deprecate() {} }
