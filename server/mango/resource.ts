export type Engine = 'sqlite' | 'mysql' | 'mariadb'

export type Resource = { name: string /* 'deliveries', for messages */; table: string; fields: Record<string, Field> }

export type Field =
  | {
      kind: 'column'
      column: string
      type: 'uuid' | 'string' | 'integer' | 'boolean' | 'time' | 'date'
      nullable?: true
      values?: readonly string[] /* enum, for suggestions */
    }
  | { kind: 'json'; column: string } // text column holding a JSON object, free paths below it
  | { kind: 'list'; table: string; key: string; column: string; type: 'uuid' | 'string'; values?: readonly string[] } // e.g. webhook_events(webhook_id,event_type): key='webhook_id', column='event_type'; an array of scalars (sorted)
  | { kind: 'related'; column: string /* nullable foreign key in this table */; resource: () => Resource } // to-one, by its id
  | {
      kind: 'children'
      resource: () => Resource
      key: string /* foreign key column in the child's table */
      orderBy: string
    } // to-many, an array of objects
