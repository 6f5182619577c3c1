// What `npm run bench -- --list` lists.

/** A benchmark that `npm run bench` knows by its name. */
export type Benchmark = {
  file: string
  args?: string[]
  about: string
  /** The options with which it measures as little as it can, to see that it runs. */
  smallest: string
  /** `npm run bench` without a name leaves it out. */
  isAlone?: true
  /** It measures nothing without a database server. */
  isOnServer?: true
}

export const benchmarks: Record<string, Benchmark> = {
  'end-to-end': {
    file: 'end-to-end.ts',
    about: 'CPU, statements, rate and latency of an event from its mutation to its receipt',
    smallest: '--rounds 1 --seconds 1 --engine sqlite',
  },
  pull: {
    file: 'pull.ts',
    about: 'CPU and latency of deliveries that one client and ten pull, beside the same pushed, and clients that wait',
    smallest: '--rounds 1 --seconds 0.3 --engine sqlite',
  },
  overload: {
    file: 'overload.ts',
    about: 'more events offered than can be taken: what is taken, how soon the rest is refused',
    smallest: '--rates 200 --seconds 1 --engine sqlite',
  },
  statements: {
    file: 'statements.ts',
    about: 'every statement that one event costs, in order (MySQL and MariaDB)',
    isOnServer: true,
    smallest: '',
  },
  evidence: {
    file: 'evidence.ts',
    isAlone: true,
    about: 'CPU of an event with the evidence of its attempt and without, in one server',
    smallest: '--quads 1 --seconds 0.2 --warm-up 0.2 --rate 100 --engine sqlite',
  },
  profile: {
    file: 'profile.ts',
    about: 'where the CPU of an event goes, in the server by package, in MySQL by statement',
    smallest: '--seconds 0.5 --rate 100 --engine sqlite',
  },
  readers: {
    file: 'readers.ts',
    isAlone: true,
    about: "another tenant's small queries and mutations beside the heaviest queries of 1 to 20 tokens",
    smallest: '--tokens 1 --window 1 --deliveries 200 --users 200 --only patterns --engine sqlite',
  },
  isolation: {
    file: 'isolation.ts',
    about: 'the worst requests that can be found, beside 100 deliveries a second of another tenant',
    smallest: '--only gone --window 1 --patience 1 --deliveries 200 --users 200 --engine sqlite',
  },
  'claim-crowd': {
    file: 'claim-crowd.ts',
    about: "others' deliveries while one webhook over its share has 100,000 due",
    smallest: '--due 200 --few 20 --seconds 0.5 --engine sqlite',
  },
  verification: {
    file: 'verification.ts',
    about: 'the verification of a delivery by the receiver kit, beside Ed25519 by hand and standardwebhooks',
    smallest: '--rounds 500',
  },
  hanging: {
    file: 'hanging.ts',
    about: "others' events while webhooks and pings hang at TIDINGS_CONCURRENCY=100",
    smallest: '--webhooks 4 --pings 10 --healthy 20 --seconds 0.5 --engine sqlite',
  },
  healing: {
    file: 'healing.ts',
    about: "others' events while a thousand dead endpoints of a tenant are pinged, and one gets 20,000 missed events",
    smallest: '--dead 10 --missed 100 --seconds 1 --turns 1 --engine sqlite',
  },
  delivery: {
    file: 'delivery.ts',
    about: 'deliveries a second beside the same client without a database, and their latency',
    smallest: '--deliveries 100 --rounds 1 --seconds 0.3 --engine sqlite',
  },
  claims: {
    file: 'delivery.ts',
    args: ['--claims'],
    isAlone: true,
    about: 'as delivery, and a claim beside 1,000,000 not yet due',
    smallest: '--deliveries 100 --rounds 1 --seconds 0.3 --rows 200 --engine sqlite',
  },
  fairness: {
    file: 'fairness.ts',
    about: 'two endpoints of a hundred that hang and flood, and the latency of the others',
    smallest: '--processes 1 --warm-up 1 --seconds 3',
    isOnServer: true,
  },
  mango: {
    file: 'mango.ts',
    about: 'selectors over 1,000,000 rows beside the SQL that one would write by hand',
    smallest: '--organisations 200 --projects 200 --deliveries 200 --engine sqlite',
  },
  counts: {
    file: 'mango.ts',
    args: ['--organisations', '1000', '--projects', '1000', '--only', 'counts'],
    about: 'counts of 1,000,000 deliveries beside the GROUP BY that one would write by hand',
    smallest: '--deliveries 1000 --engine sqlite',
  },
  reads: {
    file: 'reads.ts',
    about: 'what support asks of many deliveries, as an admin and as a token of few organisations, beside SQL by hand',
    smallest: '--events 100 --deliveries 500 --engine sqlite',
  },
  why: {
    file: 'why.ts',
    about: '`why`, `stats` and counts by hour from request to answer, beside SQL by hand; --deliveries 5000000',
    smallest: '--deliveries 500 --runs 1 --warm-up 0 --engine sqlite',
  },
  schedule: {
    file: 'schedule.ts',
    isAlone: true,
    about: "100 deliveries a second alone, and beside a purge, tokens' expiry and the opening of reports",
    smallest: '--seconds 0.5 --deliveries 50 --tokens 20 --projects 100 --engine sqlite',
  },
  faults: {
    file: 'faults.ts',
    isAlone: true,
    about: 'mutations done of 720 while three processes are killed, clocks jump, and ways to the database break',
    smallest: '--seconds 4 --kills 1 --jumps 1 --cuts 0 --processes 2',
    isOnServer: true,
  },
  graphql: {
    file: 'graphql.ts',
    about: 'queries, signed and unsigned, beside graphql-yoga and Apollo Server: CPU and latency',
    smallest: '--rounds 1 --requests 80 --warm-up 0 --engine sqlite',
  },
  cli: { file: 'cli.ts', about: 'the start of the command line beside a bare Node', smallest: '--rounds 1' },
  memory: {
    file: 'memory.ts',
    isAlone: true,
    about: 'memory in ten minutes of load with a million deliveries waiting (MySQL and MariaDB)',
    smallest: '--minutes 0.1 --waiting 1000',
    isOnServer: true,
  },
  growth: {
    file: 'growth.ts',
    isAlone: true,
    about: 'two million events in one go while the purge works: memory, files, bytes and CPU a minute',
    smallest: '--events 500 --window 1',
  },
  cores: {
    file: 'cores.ts',
    isAlone: true,
    isOnServer: true,
    about: 'deliveries a second of 1 to 64 processes and 1 to 32 cores of the database, by a model fitted here',
    smallest: '--deliveries 200 --rounds 1',
  },
  bytes: {
    file: 'bytes.ts',
    about: 'bytes of a delivery in tables and indexes, before the retention purge and after it',
    smallest: '--events 200 --engine sqlite',
  },
  plots: {
    file: 'plots.ts',
    isAlone: true,
    about: 'the figures of docs/performance.md and their plots; `--plot` for short',
    smallest: '--processes 1 --deliveries 100 --rows 200 --seconds 0.3 --folder plots --engine sqlite',
  },
  fuzz: {
    file: 'fuzz.ts',
    isAlone: true,
    about: 'a hundred thousand random requests, which show nobody what is hidden',
    smallest: '--count 100 --engine sqlite',
  },
  'two-worlds': {
    file: 'two-worlds.ts',
    isAlone: true,
    about: 'a hundred thousand random queries, answered alike whether or not there is what is hidden',
    smallest: '--count 20',
  },
}
