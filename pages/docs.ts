import { startTrying } from './try.ts'

// The pages of /docs are whole without this script: it adds what only a script can do.

/** A button that copies a block, where the browser lets a page write to the clipboard. */
const addCopyButton = (block: HTMLElement): void => {
  const button = document.createElement('button')
  button.type = 'button'
  button.className = 'copy'
  button.textContent = 'Copy'
  button.addEventListener('click', async () => {
    await navigator.clipboard.writeText(block.textContent ?? '').then(
      () => tell(button, 'Copied'),
      () => tell(button, 'Not allowed'),
    )
  })
  const frame = document.createElement('div')
  frame.className = 'framed'
  block.replaceWith(frame)
  frame.append(block, button)
}

const TOLD_MS = 2_000

const tell = (button: HTMLElement, text: string): void => {
  button.textContent = text
  setTimeout(() => {
    button.textContent = 'Copy'
  }, TOLD_MS)
}

/** What scrolls sideways is reached by the keyboard too. */
const reachWhatScrolls = (): void => {
  for (const element of document.querySelectorAll<HTMLElement>('pre, .wide')) {
    if (element.scrollWidth > element.clientWidth) element.tabIndex = 0
    else element.removeAttribute('tabindex')
  }
}

const trying = document.querySelector<HTMLElement>('#try')
if (trying) {
  const choose = startTrying(trying)
  for (const section of document.querySelectorAll<HTMLElement>('.event')) {
    const button = document.createElement('button')
    button.type = 'button'
    button.textContent = 'Send this to a webhook …'
    button.addEventListener('click', () => choose(section.id.replace(/^event-/, '')))
    section.querySelector('details')!.after(button)
  }
}
for (const block of document.querySelectorAll<HTMLElement>('pre:not([hidden])')) addCopyButton(block)
for (const table of document.querySelectorAll('table')) {
  const frame = document.createElement('div')
  frame.className = 'wide'
  table.replaceWith(frame)
  frame.append(table)
}
addEventListener('resize', reachWhatScrolls)
document.addEventListener('toggle', reachWhatScrolls, true)
reachWhatScrolls()
