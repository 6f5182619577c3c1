/** The variables of a request, to be shown: without the secret of a webhook and the values of its headers. */
export const withoutSecrets = (variables: object): object => ({
  ...variables,
  ...('secret' in variables && { secret: '…' }),
  ...('headers' in variables && {
    headers: Object.fromEntries(Object.keys(Object(variables.headers)).map(name => [name, '…'])),
  }),
})
