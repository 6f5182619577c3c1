/** What is not about one command: `tidings help NAME`. Lines of at most 80 columns; a manual page is made of each. */
export interface Topic {
  name: string
  summary: string
  text: string
}

export const topics: Topic[] = [
  {
    name: 'environment',
    summary: 'the variables that the command line and the server read',
    text: `A flag counts before the environment, and the environment before a profile.
Which one was used for what: tidings config

The connection:
  TIDINGS_URL               base URL of the server [--url]
  TIDINGS_API_KEY           API key of the access token [--api-key]
  TIDINGS_API_SECRET        its secret
  TIDINGS_API_SECRET_FILE   or a file that holds it [--api-secret-file]
  TIDINGS_PROFILE           saved profile to use [--profile]
  TIDINGS_CA_FILE           certificates, in PEM, of authorities to trust
                            besides those that Node knows [--ca-file]
  HTTPS_PROXY, HTTP_PROXY   proxy for servers with https and with http
  NO_PROXY                  hosts that are reached without it, such as
                            127.0.0.1,.example.com
  XDG_CONFIG_HOME           where profiles are kept, in tidings/profiles.json;
                            ~/.config unless set

What comes out:
  NO_COLOR                  no colour, unless --color is given
  FORCE_COLOR               colour, also where nobody watches

The server (tidings server …) is configured by its environment alone. Each
variable that it reads, and every fault in them, is told by:
  $ tidings server doctor`,
  },
  {
    name: 'exit-codes',
    summary: 'what each exit code means, for scripts',
    text: `  0   done
  1   failed: the server or an endpoint said no, or only a part was done
  2   wrong usage: the command line, or a value on it, is at fault
  3   not found: the id is nobody’s, or not visible to this access token
  4   not authenticated, or not permitted
  5   not reached: no server, no answer in time, or one that is busy
  6   verification failed: a token is not valid

What went wrong is on stderr; with --output json as
  {"error":{"code","message","hint"}}
whose code is the API’s (NOT_FOUND, CONFLICT …) or the command line’s own.
A command that does many things ends with 1 where some of them failed.

Example:
  $ tidings whoami --quiet > /dev/null || echo 'no access'`,
  },
  {
    name: 'selectors',
    summary: 'how --selector and tidings query choose rows',
    text: `A selector is a JSON object as CouchDB’s Mango has them. In a shell it stands in
single quotes.

  {"status":"rejected"}                       a field and its value
  {"attemptCount":{"$gte":3}}                 a field and a condition
  {"status":"dropped","eventType":"ping"}     all of these
  {"$or":[{"status":"dropped"},{…}]}          one of these
  {"webhook.url":{"$regex":"example"}}        by dotted path, a related object
  {"event.payload.projectReport.quarter":"2026-3"}   or a payload

Conditions: $eq $ne $lt $lte $gt $gte $in $nin $exists $type $regex $beginsWith
$mod $size $all $elemMatch $allMatch $keyMapMatch, joined by $and $or $not $nor.
Times are ISO 8601. A regular expression takes flags as in (?i). In a GraphQL
document, where $ cannot begin a key, _regex stands for $regex.

Fields are those of the API; an unknown one is answered with those there are.

Examples:
  $ tidings deliveries list --selector '{"attemptCount":{"$gte":3}}'
  $ tidings query organisations '{"name":{"$regex":"(?i)acme"}}'`,
  },
  {
    name: 'signing',
    summary: 'how requests to the API are signed, and deliveries',
    text: `Requests to the API carry
  Authorization: HMAC-SHA256 Credential=KEY&SignedHeaders=x-date;host;
                 x-content-sha256&Signature=…
(on one line). The signature is the base64 of HMAC-SHA256, with the
base64-decoded secret as key, over three lines joined by a line feed:
  the method
  path and query
  the values of the signed headers, joined by ;
x-content-sha256 is the base64 SHA-256 of the body, for an empty one too. The
date may be 5 minutes off. A signature carries a mutation once: a signed x-nonce
makes two alike differ, and an Idempotency-Key makes one that is sent again be
done once. tidings sign prints the headers; tidings proxy signs for other
programs of this machine.

Deliveries carry
  Authorization: Bearer TOKEN
a JWT signed with Ed25519 (alg EdDSA) by a key of /.well-known/jwks.json, that
its kid names. iss is the server’s address, aud the endpoint’s URL as it was
registered, exp 5 minutes after iat, jti the eventId of the body, sub the event,
and body_sha256 the body’s digest. tidings verify checks one.

Examples:
  $ tidings sign --method GET --path '/graphql?query=%7Bviewer%7Bid%7D%7D'
  $ tidings verify --help`,
  },
]
