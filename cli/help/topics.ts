/**
 * Help about more than one command: `tidings help NAME`. Lines have at most 80 columns; each topic becomes a manual
 * page.
 */
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
Which one is used: tidings config

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
  FORCE_COLOR               colour, even without a terminal

The server (tidings server …) reads its configuration from the environment
alone. This lists every variable that it reads, and every fault in them:
  $ tidings server doctor`,
  },
  {
    name: 'exit-codes',
    summary: 'what each exit code means, for scripts',
    text: `  0   done
  1   failed: the server or an endpoint refused, or only a part was done
  2   wrong usage: an error in the command line, or in a value on it
  3   not found: the id does not exist, or this access token does not see it
  4   not authenticated, or not permitted
  5   not reached: no server, no answer in time, or a busy server
  6   verification failed: a token is invalid

Errors go to stderr; with --output json as
  {"error":{"code","message","hint"}}
with a code of the API (NOT_FOUND, CONFLICT …) or of the command line.
A command that does many things ends with 1 if some of them failed.

Example:
  $ tidings whoami --quiet > /dev/null || echo 'no access'`,
  },
  {
    name: 'selectors',
    summary: 'how --selector and tidings query choose rows',
    text: `A selector is a JSON object, as in CouchDB’s Mango. In a shell, put it in
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

Fields are those of the API; the error for an unknown one lists them.

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
date may be 5 minutes off. A signature is good for one mutation: a signed
x-nonce distinguishes two equal ones, and under an Idempotency-Key a repeated
one is done once. tidings sign prints the headers; tidings proxy signs for other
programs on this machine.

Deliveries carry
  Authorization: Bearer TOKEN
a JWT signed with Ed25519 (alg EdDSA) by the key of /.well-known/jwks.json that
its kid names. iss is the server’s address, aud the endpoint’s URL as
registered, exp 5 minutes after iat, jti the eventId of the body, sub the event,
and body_sha256 the body’s digest. tidings verify checks one.

Examples:
  $ tidings sign --method GET --path '/graphql?query=%7Bviewer%7Bid%7D%7D'
  $ tidings verify --help`,
  },
]
