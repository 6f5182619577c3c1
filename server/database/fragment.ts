/** A part of a statement, with the values for its `?`. */
export type Fragment = { sql: string; bindings: (string | number)[] }

export const either = (parts: Fragment[]): Fragment => joined(parts, ' OR ')
export const all = (parts: Fragment[]): Fragment => joined(parts, ' AND ')

const joined = (parts: Fragment[], word: string): Fragment =>
  parts.length === 1
    ? parts[0]!
    : { sql: `(${parts.map(part => part.sql).join(word)})`, bindings: parts.flatMap(part => part.bindings) }

/** Fills a template: each `#` is replaced by the next fragment, each `?` takes the next value. */
export const sql = (template: string, ...parts: (Fragment | string | number)[]): Fragment => {
  const inserted = parts.values()
  const bindings: (string | number)[] = []
  const text = template.replaceAll(/[#?]/g, place => {
    const part = inserted.next().value as Fragment | string | number
    if (typeof part !== 'object') bindings.push(part)
    else bindings.push(...part.bindings)
    return place === '#' ? (part as Fragment).sql : '?'
  })
  return { sql: text, bindings }
}

/** Fills a template: each `:name` takes its value, or a list of values separated by commas. */
export const named = (template: string, values: Record<string, string | readonly string[]>): Fragment => {
  const bindings: string[] = []
  const text = template.replaceAll(/:(\w+)/g, (_, name: string) => {
    const given = [values[name]!].flat()
    bindings.push(...given)
    return given.map(() => '?').join(', ')
  })
  return { sql: text, bindings }
}
