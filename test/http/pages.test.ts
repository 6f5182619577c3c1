import assert from 'node:assert/strict'
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { join } from 'node:path'
import { after, before, describe, it } from 'node:test'
import { gunzipSync } from 'node:zlib'
import { startSigningProxy } from '../../cli/proxy/signing-proxy.ts'
import { chromium, type Page, startBrowser } from '../support/browser.ts'
import { eventually } from '../support/eventually.ts'
import { type Receiver, startReceiver } from '../support/receiver.ts'
import { sendGraphql, startTestServer, type TestServer } from '../support/server.ts'
import { send } from './signed-client.ts'

const SCREENS = [
  { name: 'desktop-light', width: 1280, height: 900, dark: false },
  { name: 'desktop-dark', width: 1280, height: 900, dark: true },
  { name: 'phone-light', width: 390, height: 844, dark: false },
  { name: 'phone-dark', width: 390, height: 844, dark: true },
]
const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8')
/** Where a person who looks at the pages has them written to. */
const { TIDINGS_WALKS: folder } = process.env

describe('the pages', () => {
  let server: TestServer
  let receiver: Receiver
  let admin: Awaited<ReturnType<TestServer['token']>>
  before(async () => {
    server = await startTestServer('sqlite')
    admin = await server.token({ name: 'ada' })
    receiver = await startReceiver()
    const { errors } = await sendGraphql(
      server.url,
      admin,
      'mutation ($url: String!) { createWebhook(url: $url, name: "Ledger") { id } }',
      { url: receiver.url },
    )
    assert.equal(errors, undefined)
  })
  after(async () => {
    await server.stop()
    await receiver.close()
  })

  it('send their scripts compressed to whoever takes that, and plain to all others', async () => {
    for (const path of ['/docs/view.js', '/docs/style.css', '/explorer/view.js', '/explorer/editor.worker.js']) {
      const plain = await send(server.url, { method: 'GET', path })
      assert.deepEqual([plain.status, plain.headers['content-encoding']], [200, undefined], path)
      const packed = await fetch(new URL(path, server.url), { headers: { 'accept-encoding': 'gzip' } })
      assert.equal(packed.headers.get('content-encoding'), 'gzip', path)
      assert.equal(await packed.text(), plain.text, path)
      const { body } = await fetch(new URL(path, server.url), { headers: { 'accept-encoding': 'br' } })
      assert.throws(() => gunzipSync(Buffer.from(plain.text)))
      await body?.cancel()
    }
  })

  it('lead to nothing but what this server has', async () => {
    for (const path of ['/docs', '/docs/receivers/python', '/docs/receivers/README', '/explorer', '/']) {
      const { text, headers } = await send(server.url, { method: 'GET', path, headers: { accept: 'text/html' } })
      assert.match(String(headers['content-security-policy']), /default-src 'none'/)
      assert.doesNotMatch(String(headers['content-security-policy']), /https?:|\*/)
      for (const [, link] of text.matchAll(/(?:src|href)="([^"]+)"/g)) {
        if (/^(data:|https:)/.test(link!)) continue
        const at = new URL(link!, new URL(path, server.url))
        const found = await send(server.url, { method: 'GET', path: at.pathname, headers: { accept: 'text/html' } })
        assert.ok(found.status === 200 || at.pathname === '/graphql', `${path}: ${link}`)
        const anchor = decodeURIComponent(at.hash.slice(1))
        if (anchor) assert.ok(found.text.includes(`id="${anchor}"`), `${path}: ${link}`)
      }
    }
  })

  describe('in a browser', { skip: chromium ? false : 'no Chromium is to be found on PATH' }, () => {
    let browser: Awaited<ReturnType<typeof startBrowser>>
    before(async () => {
      browser = await startBrowser(chromium!)
    })
    after(() => browser.stop())

    const keep = async (page: Page, name: string): Promise<void> => {
      if (!folder) return
      mkdirSync(folder, { recursive: true })
      writeFileSync(join(folder, `${name}.png`), await page.screenshot())
    }
    /** Nothing went to another host, nothing was forbidden, and nothing is wider than the screen. */
    const assertWell = async ({ requests, complaints, evaluate }: Page): Promise<void> => {
      const elsewhere = requests.filter(url => !url.startsWith(server.url) && !/^(data|blob|about):/.test(url))
      // A busy server refuses, and the page asks again.
      const wrong = complaints.filter(text => !/status of 503/.test(text))
      assert.deepEqual([elsewhere, wrong], [[], []])
      assert.equal(await evaluate('document.documentElement.scrollWidth <= innerWidth'), true, 'it fits the screen')
    }
    /** What axe finds wrong: the rule, and where. */
    const violations = async ({ evaluate }: Page): Promise<string[]> => {
      await evaluate(`${axe}; undefined`)
      return evaluate(`axe.run().then(({ violations }) => violations.flatMap(({ id, nodes }) =>
        nodes.map(({ target, failureSummary }) => id + ' at ' + target.join(' ') + ': ' + failureSummary)))`)
    }
    const isDark = `(() => {
      const [r, g, b] = getComputedStyle(document.body).backgroundColor.match(/[\\d.]+/g).map(Number)
      const { colorScheme } = getComputedStyle(document.documentElement)
      return r + g + b < 300 && getComputedStyle(document.body).backgroundColor !== 'rgba(0, 0, 0, 0)' ||
        colorScheme === 'light dark' && matchMedia('(prefers-color-scheme: dark)').matches && r + g + b === 0
    })()`

    for (const { name, ...screen } of SCREENS) {
      it(`/docs tells what comes, what to check and what follows, and shows each event: ${name}`, async () => {
        const page = await browser.open(`${server.url}/docs`, screen)
        await page.until('the script', `document.querySelector('.copy') !== null`)
        const text = await page.evaluate('document.body.innerText')
        for (const expected of [
          /What arrives/,
          /What to check/,
          /What your answer does/,
          /0\.2, 0\.4, 0\.8 s/,
          /Python/,
        ])
          assert.match(text, expected)
        assert.doesNotMatch(text, /Authorize/)
        assert.equal(await page.evaluate(isDark), screen.dark)
        await keep(page, `docs-${name}`)
        const event = `document.querySelector('#event-project_report_quarterly_overdue')`
        const shown = await page.evaluate(`${event}.innerText`)
        assert.match(shown, /projectReport\.quarter\s+string\s+Year and quarter/)
        assert.match(shown, /"quarter": "2026-3"/)
        await page.evaluate(`${event}.scrollIntoView()`)
        await keep(page, `docs-event-${name}`)
        await page.evaluate(`for (const closed of document.querySelectorAll('details')) closed.open = true`)
        await assertWell(page)
        assert.deepEqual(await violations(page), [])
        await page.close()
      })

      it(`/docs sends an example to a webhook, and tells what its endpoint answered: ${name}`, async () => {
        const before = receiver.requests.length
        const page = await browser.open(`${server.url}/docs`, screen)
        const told = `document.querySelector('#try [role=status]').innerText`
        await page.until('the script', `document.querySelector('#event-token_expired > button') !== null`)
        await page.evaluate(`document.querySelector('#event-token_expired > button').click()`)
        assert.equal(await page.evaluate('document.activeElement.name'), 'apiKey')
        await page.type(admin.apiKey)
        await page.evaluate(`document.querySelector('#try [name=apiSecret]').focus()`)
        await page.type(admin.apiSecret)
        await page.evaluate(`document.querySelector('#try form button').click()`)
        const says = (what: string, words: RegExp) =>
          eventually(
            what,
            () => page.evaluate(told),
            text => words.test(text),
          )
        await says('the webhooks', /Signing as/)
        await page.evaluate(`document.querySelector('#try form:not([hidden]) button').click()`)
        await says('the answer', /The endpoint answered 200 .*: the delivery is delivered/)
        // Of other tests something may come meanwhile.
        const sent = receiver.requests.slice(before).filter(({ body }) => body.eventType === 'token_expired')
        assert.equal(sent.length, 1)
        await keep(page, `docs-try-${name}`)
        await assertWell(page)
        assert.deepEqual(await violations(page), [])
        assert.ok(!(await page.evaluate('document.documentElement.outerHTML')).includes(admin.apiSecret))
        await page.close()
      })

      it(`/explorer runs a query that it has signed: ${name}`, async () => {
        const page = await browser.open(`${server.url}/explorer`, screen)
        await page.until('the form', `document.querySelector('input[name=apiSecret]') !== null`)
        await page.evaluate(`document.querySelector('input[name=apiKey]').focus()`)
        await page.type(admin.apiKey)
        await page.evaluate(`document.querySelector('input[name=apiSecret]').focus()`)
        await page.type(admin.apiSecret)
        await page.evaluate(`document.querySelector('form.signing button').click()`)
        await page.until('to sign', `/Signing as/.test(document.querySelector('.signing').innerText)`)
        await page.until('the editor', `document.querySelector('.graphiql-execute-button:not([disabled])') !== null`)
        await page.until(
          'its text',
          `/viewer/.test(document.querySelector('.graphiql-query-editor, .graphiql-editor').innerText)`,
        )
        await page.evaluate(`document.querySelector('.graphiql-execute-button').click()`)
        await page.until(
          'the answer',
          `/"ada"/.test(document.querySelector('.result-window, .graphiql-response').innerText)`,
        )
        await keep(page, `explorer-${name}`)
        await assertWell(page)
        assert.deepEqual(await violations(page), [])
        const kept = await page.evaluate(
          `JSON.stringify([{ ...localStorage }, { ...sessionStorage }, document.cookie])`,
        )
        assert.ok(!kept.includes(admin.apiSecret) && !kept.includes(admin.apiKey), 'nothing of it is kept')
        assert.ok(!page.requests.some(url => url.includes(admin.apiSecret)))
        await page.close()
      })
    }

    it('/explorer has no key where tidings explore signs on the way, and is told as it happens', async () => {
      const connection = { url: new URL(server.url), apiKey: admin.apiKey, apiSecret: admin.apiSecret }
      const proxy = await startSigningProxy(connection, { port: 0, onPassed() {} })
      const page = await browser.open(`${proxy.url}/explorer#signed`)
      await page.until('the editor', `document.querySelector('.graphiql-execute-button:not([disabled])') !== null`)
      assert.equal(await page.evaluate(`document.querySelector('.signing')`), null)
      await page.until('its text', `/viewer/.test(document.querySelector('.graphiql-query-editor').innerText)`)
      await page.evaluate(`document.querySelector('.graphiql-execute-button').click()`)
      await page.until('the answer', `/"ada"/.test(document.querySelector('.graphiql-response').innerText)`)
      const type = await page.evaluate(`fetch('graphql', {
        method: 'POST',
        headers: { 'content-type': 'application/json', accept: 'text/event-stream' },
        body: JSON.stringify({ query: 'subscription { deliveries { id } }' }),
      }).then(async ({ headers, body }) => {
        const { value } = await body.getReader().read()
        return headers.get('content-type') + new TextDecoder().decode(value)
      })`)
      assert.match(type, /^text\/event-stream.*:\n\n/)
      assert.deepEqual(page.complaints, [])
      await page.close()
      await proxy.close()
    })

    it('/docs says why an example cannot be sent', async () => {
      const page = await browser.open(`${server.url}/docs`)
      await page.until('the script', `document.querySelector('.copy') !== null`)
      const stranger = { apiKey: 'tk_nobody', apiSecret: 'AAAA' }
      for (const [name, value] of Object.entries(stranger)) {
        await page.evaluate(`document.querySelector('#try [name=${name}]').focus()`)
        await page.type(value)
      }
      await page.evaluate(`document.querySelector('#try form button').click()`)
      await page.until('why', `/No access token/.test(document.querySelector('#try [role=status]').innerText)`)
      await page.close()
    })

    it('a secret that is none is said to be none, and no request is made', async () => {
      const page = await browser.open(`${server.url}/explorer`)
      await page.until('the form', `document.querySelector('input[name=apiSecret]') !== null`)
      await page.evaluate(`document.querySelector('input[name=apiKey]').focus()`)
      await page.type('tk_1')
      await page.evaluate(`document.querySelector('input[name=apiSecret]').focus()`)
      await page.type('no base64!')
      await page.evaluate(`document.querySelector('form.signing button').click()`)
      await page.until('what is wrong', `/not base64/.test(document.querySelector('[role=alert]').innerText)`)
      assert.ok(!page.requests.some(url => url.endsWith('/graphql')))
      await page.close()
    })
  })
})
