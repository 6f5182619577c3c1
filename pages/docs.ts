import SwaggerUI from 'swagger-ui-dist/swagger-ui-es-bundle.js'

// Swagger UI, which asks no other host and tells nobody: side by side with it, Redoc 3.0 fetched its maker's logo and
// Scalar 1.72 its fonts, and both have telemetry inside, offer services elsewhere, and are larger.
// Shows the events below the prose of /docs. Tidings calls and is not called: there is nothing to authorize or to try,
// and what the description says of the whole stands above.

const nothing = () => () => null

const dark = matchMedia('(prefers-color-scheme: dark)')
const follow = () => document.documentElement.classList.toggle('dark-mode', dark.matches)
dark.addEventListener('change', follow)
follow()

SwaggerUI({
  url: 'spec/webhooks.json',
  dom_id: '#events',
  validatorUrl: null,
  supportedSubmitMethods: [],
  docExpansion: 'list',
  defaultModelExpandDepth: 5,
  plugins: [
    () => ({
      wrapComponents: {
        InfoContainer: nothing,
        ServersContainer: nothing,
        SchemesContainer: nothing,
        authorizeBtn: nothing,
        authorizeOperationBtn: nothing,
      },
    }),
  ],
})
