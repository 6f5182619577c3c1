import assert from 'node:assert/strict'

/** The file with only addresses and certificates replaced by those of this machine. */
export const nginxWith = (site: string, folder: string, port: number, upstream: string): string => {
  const here = site
    .replace('listen 443 ssl', `listen 127.0.0.1:${port}`)
    .replaceAll(/^ *ssl_certificate.*\n/gm, '')
    .replace('127.0.0.1:4100', upstream)
  assert.ok(here.includes(`127.0.0.1:${port}`) && here.includes(upstream))
  const temporary = ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi'].map(
    name => `${name}_temp_path ${folder}/${name};`,
  )
  return `daemon off; master_process off; worker_processes 1; pid ${folder}/pid; error_log ${folder}/errors;
events { worker_connections 2048; }
http { access_log off; ${temporary.join(' ')}
${here} }`
}
