import SwaggerUI from 'swagger-ui-dist/swagger-ui-es-bundle.js'

// Shows the events below the prose of /docs with Swagger UI, which requests no other host. Compared side by side, Redoc
// 3.0 fetched its maker's logo and Scalar 1.72 its fonts; both contain telemetry, offer services elsewhere, and are
// larger. Tidings calls and is not called, so there is nothing to authorize or to try, and the description of the whole
// is already above.

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
