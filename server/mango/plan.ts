import type { Dialect } from '../database/dialect.ts'
import { all, either, type Fragment, sql } from '../database/fragment.ts'
import { fieldOf } from './bind.ts'
import { among, beginsWith, type Comparable, comparison, isText, sampleOf, timeBeginsWith } from './columns.ts'
import { lastKey, textIn } from './json-text.ts'
import { satisfies } from './matcher.ts'
import {
  atMost,
  choose,
  conjunction,
  disjunction,
  exactly,
  negatedIf,
  opposite,
  oppositePresent,
  type Predicate,
  UNKNOWN,
} from './predicate.ts'
import type { Literal, Prefilter } from './prefilter.ts'
import type { Field, Resource, ScalarType, VisibleRows } from './resource.ts'
import type { Condition, FieldNode, Node } from './selector.ts'

/** A plan for a selector: the SQL condition, and the rest to match in TypeScript. */
export type Plan = {
  /** To-one relations, in the order of their dependencies. */
  joins: Join[]
  /** True of every row that the selector selects; `false` if it selects none. */
  where: Fragment | boolean
  /** The conditions that `where` does not express exactly. */
  residual: Node | undefined
  /** SQL for the column of a path, with the joins that it needs; undefined for a path into a list or JSON. */
  columnAt(path: readonly string[]): string | undefined
}

/**
 * `from`: the visible rows of the relation, under an alias. `required`: selected rows have this relation. `isSearched`:
 * only the text of its documents is searched, which no index covers.
 */
export type Join = { from: Fragment; alias: string; on: Fragment; required: boolean; isSearched: boolean }

/** Plans a bound selector over `resource`; its table has no alias. */
export const plan = (node: Node, resource: Resource, dialect: Dialect, visible: VisibleRows): Plan => {
  const planner = new Planner(dialect, visible)
  const root: TableRef = { resource, alias: resource.table, joined: new Map() }
  const conjuncts = conjunctsOf(node)
  const predicates = conjuncts.map(conjunct => planner.predicate(conjunct, root))
  const residual = conjuncts.filter((_, index) => !predicates[index]!.exact)
  return {
    joins: planner.joins,
    where: conjunction(predicates).sql,
    columnAt: path => planner.columnAt(path, root),
    residual:
      residual.length === 0 ? undefined : residual.length === 1 ? residual[0] : { kind: 'and', nodes: residual },
  }
}

/** More alternatives would make the statement too long. */
const MOST_ALTERNATIVES = 8

/**
 * The alternatives of a disjunction with fields of a relation beside others, where an index serves each alternative but
 * not all together. Empty for any other node.
 */
export const alternativesOf = (node: Node, resource: Resource): Node[] => {
  const conjuncts = conjunctsOf(node)
  const mixed = conjuncts.find(
    conjunct =>
      conjunct.kind === 'or' &&
      conjunct.nodes.length <= MOST_ALTERNATIVES &&
      relatedTo(conjunct, resource) === undefined &&
      conjunct.nodes.some(inner => relatedTo(inner, resource) !== undefined),
  )
  if (mixed?.kind !== 'or') return []
  const others = conjuncts.filter(conjunct => conjunct !== mixed)
  return mixed.nodes.map(inner => ({ kind: 'and', nodes: [...others, inner] }))
}

const conjunctsOf = (node: Node): Node[] => (node.kind === 'and' ? node.nodes.flatMap(conjunctsOf) : [node])

/** A table in scope: the statement's own, which can have joins, or that of a subquery in EXISTS. */
type TableRef = { resource: Resource; alias: string; joined?: Map<string, TableRef> }

/** A column in scope, of a resource's table or of a list's table. */
type ColumnRef = { column: string; type: ScalarType; nullable: boolean }

type Kind<K extends Field['kind']> = Extract<Field, { kind: K }>

class Planner {
  readonly joins: Join[] = []
  readonly #dialect: Dialect
  readonly #visible: VisibleRows
  #aliases = 0

  constructor(dialect: Dialect, visible: VisibleRows) {
    this.#dialect = dialect
    this.#visible = visible
  }

  predicate(node: Node, scope: TableRef | ColumnRef): Predicate {
    const related = 'resource' in scope ? relatedTo(node, scope.resource) : undefined
    if (related) return this.#related(node, scope as TableRef, related)
    switch (node.kind) {
      case 'constant':
        return exactly(node.value)
      case 'and':
        return conjunction(node.nodes.map(inner => this.predicate(inner, subquery(scope))))
      case 'or':
        return node.nodes.length === 0
          ? exactly(true)
          : disjunction(node.nodes.map(inner => this.predicate(inner, subquery(scope))))
      case 'not':
        return opposite(this.predicate(node.node, subquery(scope)))
      case 'field':
        if ('resource' in scope) return this.#field(node, scope)
        return node.path.length === 0 ? this.#scalar(node, scope) : exactly(false)
    }
  }

  #field(node: FieldNode, from: TableRef): Predicate {
    const [name, ...rest] = node.path
    // A condition on the row as a whole, which is always an object.
    if (name === undefined) return exactly(satisfies(node.condition, anObject) !== node.negated)
    const field = fieldOf(from.resource, name, node.at)
    switch (field.kind) {
      case 'column':
        return this.#scalar(node, {
          column: `${from.alias}.${field.column}`,
          type: field.type,
          nullable: field.nullable ?? false,
        })
      case 'json':
        return this.#json(node, `${from.alias}.${field.column}`, rest)
      case 'list':
        return rest.length > 0 ? UNKNOWN : this.#list(node, field, from)
      case 'children':
        return rest.length > 0 ? UNKNOWN : this.#children(node, field, from)
      case 'part':
      case 'derived':
        return UNKNOWN
      case 'related':
        return this.#whole(node, this.#existsRelated(field, from, exactly(true), `r${++this.#aliases}`).sql)
    }
  }

  /** A node about fields of one to-one relation; false for a row without it. */
  #related(node: Node, from: TableRef, name: string): Predicate {
    const field = from.resource.fields[name] as Kind<'related'>
    const inner = withoutFirst(node)
    if (!from.joined) {
      const alias = `r${++this.#aliases}`
      return this.#existsRelated(field, from, this.predicate(inner, { resource: field.resource(), alias }), alias)
    }
    const related = this.#join(from, from.joined, name, true)
    const join = this.joins.find(({ alias }) => alias === related.alias)!
    if (!isAboutJson(inner, related.resource)) join.isSearched = false
    return conjunction(conjunctsOf(inner).map(conjunct => this.predicate(conjunct, related)))
  }

  columnAt(path: readonly string[], from: TableRef): string | undefined {
    const [name, ...rest] = path
    const field = from.resource.fields[name!]!
    if (field.kind === 'column') return `${from.alias}.${field.column}`
    if (field.kind !== 'related' || !from.joined) return undefined
    return this.columnAt(rest, this.#join(from, from.joined, name!, false))
  }

  /** The row of a to-one relation, joined to the statement. */
  #join(from: TableRef, joined: Map<string, TableRef>, name: string, required: boolean): TableRef {
    const existing = joined.get(name)
    if (existing) return existing
    const field = from.resource.fields[name] as Kind<'related'>
    const resource = field.resource()
    const related: TableRef = { resource, alias: `r${++this.#aliases}`, joined: new Map() }
    joined.set(name, related)
    const key: Fragment = { sql: `${related.alias}.id = ${from.alias}.${field.column}`, bindings: [] }
    const visible = this.#visible(resource, related.alias)
    const seen = this.#dialect.seenInJoin(resource.table, related.alias, visible)
    const on = seen.on ? all([key, seen.on]) : key
    this.joins.push({ from: seen.from, alias: related.alias, on, required, isSearched: required })
    return related
  }

  #existsRelated(field: Kind<'related'>, from: TableRef, inner: Predicate, alias: string): Predicate {
    const resource = field.resource()
    return this.#exists(
      resource.table,
      alias,
      `${alias}.id = ${from.alias}.${field.column}`,
      inner,
      this.#visible(resource, alias),
    )
  }

  #exists(table: string, alias: string, key: string, inner: Predicate, visible?: Fragment): Predicate {
    if (inner.sql === false) return inner
    const conditions = [
      { sql: key, bindings: [] },
      ...(visible ? [visible] : []),
      ...(inner.sql === true ? [] : [inner.sql]),
    ]
    return { sql: sql(`EXISTS (SELECT 1 FROM ${table} ${alias} WHERE #)`, all(conditions)), exact: inner.exact }
  }

  /** A condition that only asks whether a value is an object or null. */
  #whole(node: FieldNode, exists: Fragment | boolean): Predicate {
    return choose(
      exactly(satisfies(node.condition, anObject) !== node.negated),
      satisfies(node.condition, null) !== node.negated,
      sql('#', exists as Fragment),
      sql('NOT #', exists as Fragment),
    )
  }

  #list(node: FieldNode, field: Kind<'list'>, from: TableRef): Predicate {
    const alias = `l${++this.#aliases}`
    const key = `${alias}.${field.key} = ${from.alias}.id`
    const element: ColumnRef = { column: `${alias}.${field.column}`, type: field.type, nullable: false }
    const visible = field.of && this.#visible(field.of(), alias, field.column)
    const some = (condition: Condition): Predicate => {
      const inner = this.#scalar({ ...node, path: [], negated: false, condition }, element)
      return this.#exists(field.table, alias, key, inner, visible)
    }
    const { condition } = node
    switch (condition.operator) {
      case '$in':
        return negatedIf(node.negated, some(condition))
      case '$nin':
        return negatedIf(!node.negated, some({ operator: '$in', values: condition.values }))
      case '$all':
        if (condition.values.length === 0) return exactly(node.negated)
        if (Array.isArray(condition.values[0]) && condition.values.length === 1) return UNKNOWN
        return negatedIf(node.negated, conjunction(condition.values.map(value => some({ operator: '$eq', value }))))
      default:
        return this.#many(node, { table: field.table, alias, key, element, visible })
    }
  }

  #children(node: FieldNode, field: Kind<'children'>, from: TableRef): Predicate {
    const resource = field.resource()
    const alias = `c${++this.#aliases}`
    const element: TableRef = { resource, alias }
    const visible = this.#visible(resource, alias)
    return this.#many(node, {
      table: resource.table,
      alias,
      key: `${alias}.${field.key} = ${from.alias}.id`,
      element,
      visible,
      isRowByRow: true,
    })
  }

  /** A condition on rows of another table as a list. */
  #many(
    node: FieldNode,
    rows: {
      table: string
      alias: string
      key: string
      element: TableRef | ColumnRef
      visible?: Fragment | undefined
      /** No index leads to these rows except by their parent. */
      isRowByRow?: boolean
    },
  ): Predicate {
    const { table, alias, key, element, visible, isRowByRow = false } = rows
    const some = (inner: Predicate): Predicate => {
      const exists = this.#exists(table, alias, key, inner, visible)
      // In this form no engine turns it into a join that starts at the other table.
      if (!isRowByRow || typeof exists.sql === 'boolean') return exists
      return { ...exists, sql: sql('CASE WHEN # THEN 1 ELSE 0 END = 1', exists.sql) }
    }
    const { condition } = node
    switch (condition.operator) {
      case '$elemMatch':
        return negatedIf(node.negated, some(this.predicate(condition.node, element)))
      case '$allMatch': {
        const fails = opposite(this.predicate(condition.node, element))
        const any = some(exactly(true))
        if (!fails.exact) return negatedIf(node.negated, { ...any, exact: false })
        return negatedIf(node.negated, conjunction([any, opposite(some(fails))]))
      }
      case '$size': {
        const conditions = all([{ sql: key, bindings: [] }, ...(visible ? [visible] : [])])
        const count = sql(
          `(SELECT COUNT(*) FROM ${table} ${alias} WHERE #) ${node.negated ? '<>' : '='} ${condition.value}`,
          conditions,
        )
        return exactly(condition.value === 0 ? negatedIf(!node.negated, some(exactly(true))).sql : count)
      }
      default:
        return this.#asList(node, some(exactly(true)).sql as Fragment)
    }
  }

  /** A condition in SQL can only tell whether a list is empty; TypeScript decides the rest. */
  #asList({ condition, negated }: FieldNode, some: Fragment): Predicate {
    const { operator } = condition
    const tellsElements =
      'values' in condition || ('value' in condition && Array.isArray(condition.value) && condition.value.length > 0)
    if (tellsElements) {
      const listsNone = operator === '$all' || operator === '$in' || operator === '$nin'
      // Elements that are objects equal nothing, because the compared list has none.
      if (!listsNone) return UNKNOWN
      return exactly((operator === '$nin') !== negated)
    }
    const whenEmpty = satisfies(condition, []) !== negated
    const whenNot = satisfies(condition, [null]) !== negated
    if (whenEmpty === whenNot) return exactly(whenEmpty)
    return exactly(whenNot ? some : sql('NOT #', some))
  }

  #scalar(node: FieldNode, { column, type, nullable }: ColumnRef): Predicate {
    const present = this.#presentScalar(node.condition, column, type)
    const whenPresent = node.negated ? oppositePresent(present) : present
    if (!nullable) return whenPresent
    const whenNull = satisfies(node.condition, null) !== node.negated
    return choose(
      whenPresent,
      whenNull,
      { sql: `${column} IS NOT NULL`, bindings: [] },
      { sql: `${column} IS NULL`, bindings: [] },
    )
  }

  /** A condition on a column, assuming that it is not null. */
  #presentScalar(condition: Condition, column: string, type: ScalarType): Predicate {
    const comparable = { column, type, text: (value: string) => this.#dialect.collated(value) }
    switch (condition.operator) {
      case '$eq':
      case '$ne':
      case '$lt':
      case '$lte':
      case '$gt':
      case '$gte':
        return exactly(comparison(comparable, condition.operator, condition.value))
      case '$in':
      case '$nin': {
        const found = among(comparable, condition.values)
        if (condition.operator === '$in') return exactly(found)
        return exactly(typeof found === 'boolean' ? !found : sql('NOT (#)', found))
      }
      case '$mod':
        if (type !== 'integer') return exactly(false)
        return exactly({ sql: `${column} % ? = ?`, bindings: [condition.divisor, condition.remainder] })
      case '$beginsWith':
        if (type === 'time') return exactly(timeBeginsWith(column, condition.value))
        return exactly(isText(type) && beginsWith(comparable, condition.value))
      case '$regex':
        if (!isText(type)) return type === 'time' ? UNKNOWN : exactly(false)
        return this.#regex(comparable, condition.pattern.prefilter)
      default:
        // The other operators ask for a type, or for lists and objects, which no column is.
        return exactly(satisfies(condition, sampleOf(type)))
    }
  }

  #regex(column: Comparable, { literals, regex }: Prefilter): Predicate {
    const text = literals.length === 0 ? UNKNOWN : this.#containsOne(column, literals)
    const matches = regex && this.#dialect.matches?.(column.column, regex.source)
    // Searching for a substring costs less than matching.
    if (text.exact || !matches || (text.sql !== true && !regex.complete)) return text
    return { sql: conjunction([text, exactly(matches)]).sql, exact: regex.complete }
  }

  #containsOne(column: Comparable, literals: Literal[]): Predicate {
    return disjunction(
      literals.map(({ text, at, ignoreCase, complete }) => {
        if (at === 'whole') return exactly(comparison(column, '$eq', text))
        if (text === '') return { sql: true, exact: complete }
        if (ignoreCase) return atMost(this.#dialect.containsIgnoringCase(column.column, text))
        const found = at === 'start' ? beginsWith(column, text) : this.#dialect.contains(column.column, text)
        return { sql: found, exact: complete }
      }),
    )
  }

  /**
   * JSON is matched in TypeScript, on rows whose text contains what a match needs. JSON functions of the engines differ
   * in numbers, escapes and duplicate keys, and a substring search is faster than parsing.
   */
  #json(node: FieldNode, column: string, path: string[]): Predicate {
    const { condition, negated } = node
    if (path.length === 0) {
      if (condition.operator === '$exists') return exactly(condition.value !== negated)
      return UNKNOWN
    }
    if (condition.operator === '$exists' && !condition.value) return UNKNOWN
    const text = negated ? undefined : textIn(condition)
    if (text) {
      return atMost(
        either(
          text.map(({ part, ignoreCase }) =>
            ignoreCase ? this.#dialect.containsIgnoringCase(column, part) : this.#dialect.contains(column, part),
          ),
        ),
      )
    }
    const key = lastKey(path)
    return key === undefined ? UNKNOWN : atMost(this.#dialect.contains(column, `"${key}"`))
  }
}

/** Whether all conditions of a node lead into a document. */
const isAboutJson = (node: Node, resource: Resource): boolean => {
  if (node.kind === 'field') return node.path.length > 1 && resource.fields[node.path[0]!]?.kind === 'json'
  return (node.kind === 'and' || node.kind === 'or') && node.nodes.every(inner => isAboutJson(inner, resource))
}

const anObject = { id: '' }

const subquery = (scope: TableRef | ColumnRef): TableRef | ColumnRef =>
  'resource' in scope ? { resource: scope.resource, alias: scope.alias } : scope

/** The to-one relation that the whole `node` is about, if there is one. */
const relatedTo = (node: Node, resource: Resource): string | undefined => {
  if (node.kind === 'field') {
    const name = node.path.length > 1 ? node.path[0]! : undefined
    return name !== undefined && resource.fields[name]?.kind === 'related' ? name : undefined
  }
  if ((node.kind !== 'and' && node.kind !== 'or') || node.nodes.length === 0) return undefined
  const names = node.nodes.map(inner => relatedTo(inner, resource))
  return names.every(name => name === names[0]) ? names[0] : undefined
}

const withoutFirst = (node: Node): Node => {
  if (node.kind === 'field') return { ...node, path: node.path.slice(1) }
  return { ...node, nodes: (node as Extract<Node, { nodes: Node[] }>).nodes.map(withoutFirst) } as Node
}
