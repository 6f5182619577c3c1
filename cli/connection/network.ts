import { readFileSync } from 'node:fs'
import tls from 'node:tls'
import { getProxyForUrl } from 'proxy-from-env'
import { setGlobalProxyFromEnv } from '../../shared/node-http.ts'
import { fileFault, usageError } from '../errors.ts'
import type { Setting } from './connection.ts'

// Proxies and additional certificate authorities.

/**
 * Sends all requests of this process through the proxies of the environment, and trusts the authorities of a file.
 * Throws a CliError, exit code 2, if the file has no certificate.
 */
export const setUpNetwork = (caFileFlag: string | undefined, environment: NodeJS.ProcessEnv): void => {
  const caFile = caFileSetting(caFileFlag, environment)
  if (caFile) tls.setDefaultCACertificates([...tls.getCACertificates('default'), ...certificatesIn(caFile)])
  if (!namesProxy(environment)) return
  const [byHttp, byHttps] = ['HTTP_PROXY', 'HTTPS_PROXY'].map(name => read(environment, name)?.value)
  const all = read(environment, 'ALL_PROXY')?.value
  setGlobalProxyFromEnv({
    http_proxy: byHttp ?? all,
    https_proxy: byHttps ?? all,
    no_proxy: read(environment, 'NO_PROXY')?.value,
  })
}

/** The file of authorities to trust in addition to Node's. */
export const caFileSetting = (flag: string | undefined, environment: NodeJS.ProcessEnv): Setting | undefined => {
  if (flag !== undefined) return { value: flag, source: '--ca-file' }
  const { TIDINGS_CA_FILE: value } = environment
  return value ? { value, source: 'TIDINGS_CA_FILE' } : undefined
}

/** The proxy for a URL, without its password, and the variable that names it. */
export const proxyFor = (url: URL, environment: NodeJS.ProcessEnv): Setting | undefined => {
  if (!namesProxy(environment)) return undefined
  const proxy = URL.parse(getProxyForUrl(url.href))
  if (!proxy) return undefined
  const name = url.protocol === 'https:' ? 'HTTPS_PROXY' : 'HTTP_PROXY'
  return { value: proxy.origin, source: read(environment, name)?.source ?? 'ALL_PROXY' }
}

const namesProxy = (environment: NodeJS.ProcessEnv): boolean =>
  ['HTTP_PROXY', 'HTTPS_PROXY', 'ALL_PROXY'].some(name => read(environment, name))

/** Both spellings are in use; lower case takes precedence, as everywhere. */
const read = (environment: NodeJS.ProcessEnv, name: string): Setting | undefined => {
  const source = [name.toLowerCase(), name].find(each => environment[each])
  return source === undefined ? undefined : { value: environment[source]!, source }
}

const certificatesIn = ({ value, source }: Setting): string[] => {
  let text: string
  try {
    text = readFileSync(value, 'utf8')
  } catch (error) {
    throw usageError(`The file that ${source} names cannot be read: ${fileFault(error)}.`, 'Check its path and owner.')
  }
  const found = text.match(/-----BEGIN CERTIFICATE-----[\s\S]+?-----END CERTIFICATE-----/g)
  if (found) return found
  throw usageError(
    `The file that ${source} names holds no certificate.`,
    'It must be PEM, which begins with -----BEGIN CERTIFICATE-----.',
  )
}
