"""Receives deliveries of Tidings: verifies them, handles each once, and answers in time. One file to copy; Python 3.9 or newer.

    pip install cryptography

    receiver = Receiver(issuer="https://tidings.example.com", audience="https://example.com/hooks", handler=print)
    application = receiver.wsgi                 # gunicorn, Flask and Django are WSGI
    app = receiver.asgi                         # uvicorn and hypercorn are ASGI
    app.add_route("/hooks", receiver.asgi)      # Starlette and FastAPI

docs/receivers/README.md explains what it does, and why.
"""
import asyncio
import base64
import hashlib
import http.client
import json
import logging
import math
import re
import threading
import time
import uuid
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor, TimeoutError as FutureTimeout
from urllib.parse import urlsplit

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

log = logging.getLogger("tidings.receiver")

MAX_BODY_BYTES = 1024 * 1024
MAX_TOKEN_CHARACTERS = 16_384
TOKEN_LIFETIME_SECONDS = 300
CLOCK_TOLERANCE_SECONDS = 60
CLAIM_SECONDS = 60
HANDLED_SECONDS = 96 * 3600


class Refused(Exception):
    """Why a request is not answered 200: a code, and the status for it."""

    STATUSES = {
        "method": 405, "body_too_large": 413, "body_incomplete": 503, "body": 500, "in_progress": 503,
        "handler_failed": 500, "timeout": 503, "keys_unavailable": 503, "replay_store_unavailable": 503,
        "retry_later": 429,
    }  # all others are checks of the token: 401

    def __init__(self, code, retry_after=None):
        super().__init__(code)
        self.code, self.retry_after = code, retry_after
        self.status = self.STATUSES.get(code, 401)

    def answer(self):
        headers = {"Content-Type": "application/json"}
        if self.code == "token_missing":
            headers["WWW-Authenticate"] = "Bearer"
        elif self.status == 401:
            headers["WWW-Authenticate"] = f'Bearer error="invalid_token", error_description="{self.code}"'
        if self.code == "method":
            headers["Allow"] = "POST"
        if self.code == "body_too_large":
            headers["Connection"] = "close"
        if self.retry_after is not None:
            headers["Retry-After"] = str(self.retry_after)
        return self.status, headers, json.dumps({"error": self.code}).encode()


class RetryLater(Exception):
    """Raised by a handler: the delivery is answered 429, and the webhook receives nothing for that many seconds."""

    def __init__(self, seconds):
        if not (isinstance(seconds, (int, float)) and 0 <= seconds <= 86_400):
            raise ValueError(f"{seconds!r} is no number of seconds to wait, from 0 to 86400.")
        super().__init__(f"again in {seconds} s")
        self.seconds = math.ceil(seconds)


class MemoryStore:
    """Remembers what was handled, in this process. Several processes need a shared store with these methods, such as in Redis.

    A claim has an owner; only the owner may record or release it.
    """

    def __init__(self, max_entries=100_000, now=time.time):
        self._claims, self._handled = OrderedDict(), OrderedDict()
        self._max_entries, self._now, self._lock = max_entries, now, threading.Lock()

    def claim(self, key, seconds):
        """The owner of a new claim; "handled" or "in_progress" is returned as (status, None)."""
        with self._lock:
            now = self._now()
            self._drop_lapsed(now)
            if self._handled.get(key, 0) > now:
                return "handled", None
            if key in self._claims and self._claims[key][1] > now:
                return "in_progress", None
            owner = str(uuid.uuid4())
            self._claims[key] = (owner, now + seconds)
            self._claims.move_to_end(key)
            return "claimed", owner

    def record(self, key, owner, seconds):
        with self._lock:
            now = self._now()
            claim = self._claims.get(key)
            if self._handled.get(key, 0) > now or (claim and claim[1] > now and claim[0] != owner):
                return False
            self._claims.pop(key, None)
            self._handled[key] = now + seconds
            self._handled.move_to_end(key)
            while len(self._handled) > self._max_entries:
                self._handled.popitem(last=False)
            return True

    def release(self, key, owner):
        with self._lock:
            claim = self._claims.get(key)
            if claim is None or claim[0] != owner or claim[1] <= self._now():
                return False
            del self._claims[key]
            return True

    def _drop_lapsed(self, now):
        for entries, until in ((self._claims, lambda value: value[1]), (self._handled, lambda value: value)):
            while entries and until(next(iter(entries.values()))) <= now:
                entries.popitem(last=False)


class Keys:
    """The issuer's keys: fetched when first needed, in the background before they expire, and for an unknown kid.

    A known key waits for a fetch only when the keys are older than 300 s: it may have been revoked. If that fails, it serves for an
    hour. At most one request is under way.
    """

    REFRESH_AFTER, FRESH, STALE, LEAST_BETWEEN, TIMEOUT = 240, 300, 3600, 10, 5
    MAX_BYTES = 256 * 1024

    def __init__(self, url, now=time.monotonic):
        self._url, self._now, self._lock = url, now, threading.Lock()
        self._set = ({}, -math.inf)  # the keys, and when they were fetched: replaced as one
        self._failed_at, self._under_way = -math.inf, None

    def get(self, kid):
        """The Ed25519 public key of a kid, or None. Raises Refused if the keys cannot be fetched."""
        keys, fetched_at = self._set
        known, age = kid in keys, self._now() - fetched_at
        if age < (self.REFRESH_AFTER if known else self.LEAST_BETWEEN):
            return keys.get(kid)
        fetch, is_own = self._refresh()
        if known and age < self.FRESH:
            return keys.get(kid)
        if not known and keys and not is_own:
            raise Refused("keys_unavailable")  # one stranger may wait, and not all threads
        try:
            fetch.result(self.TIMEOUT)
        except (Exception, FutureTimeout) as error:
            if not known or age > self.STALE:
                raise Refused("keys_unavailable") from error
        return self._set[0].get(kid)

    def _refresh(self):
        """The fetch that is under way, and whether the caller has begun it."""
        with self._lock:
            now = self._now()
            if self._under_way and not self._under_way[0].done() and now - self._under_way[1] < 2 * self.TIMEOUT:
                return self._under_way[0], False
            future = Future()
            if now - self._failed_at < self.LEAST_BETWEEN:
                future.set_exception(ConnectionError("the keys could not be had a moment ago"))
                return future, False
            self._under_way = (future, now)
            threading.Thread(target=self._fetch, args=(future, now), daemon=True).start()
            return future, True

    def _fetch(self, future, started_at):
        try:
            keys = usable_keys(self._read())
        except Exception as error:
            log.warning("The issuer's keys at %s could not be had: %s", self._url, error)
            self._failed_at = self._now()
            future.set_exception(error)
        else:
            self._set = (keys, started_at)
            future.set_result(None)

    def _read(self):
        url = urlsplit(self._url)
        kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
        connection = kind(url.hostname, url.port, timeout=self.TIMEOUT)
        deadline = time.monotonic() + self.TIMEOUT
        try:
            connection.request("GET", url.path + (f"?{url.query}" if url.query else ""), headers={"Accept": "application/json"})
            response = connection.getresponse()
            if response.status != 200:
                raise ValueError(f"answered {response.status}, not 200")
            body = b""
            while chunk := response.read1(65_536):
                body += chunk
                if len(body) > self.MAX_BYTES or time.monotonic() > deadline:
                    raise ValueError("longer than 256 KiB, or not whole in time")
            return body
        finally:
            connection.close()


def usable_keys(body):
    """The Ed25519 keys of a set by kid. Raises ValueError if there is none: such a set replaces no good one."""
    key_set = strict_json(body)
    listed = key_set.get("keys") if isinstance(key_set, dict) else None
    keys = {}
    for key in listed if isinstance(listed, list) else []:
        if not isinstance(key, dict) or key.get("kty") != "OKP" or key.get("crv") != "Ed25519":
            continue
        raw = from_base64url(key.get("x"))
        if isinstance(key.get("kid"), str) and raw is not None and len(raw) == 32:
            keys.setdefault(key["kid"], Ed25519PublicKey.from_public_bytes(raw))
    if not keys:
        raise ValueError("no Ed25519 key in it")
    return keys


def from_base64url(text):
    """The bytes of canonical base64url; None otherwise."""
    if not isinstance(text, str) or not re.fullmatch(r"[A-Za-z0-9_-]*", text) or len(text) % 4 == 1:
        return None
    raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    return raw if base64.urlsafe_b64encode(raw).rstrip(b"=").decode() == text else None


def strict_json(raw, repeated=True):
    """Standard JSON: UTF-8 and no NaN; with `repeated` false, no duplicate names."""

    def members(pairs):
        if not repeated and len({name for name, _ in pairs}) != len(pairs):
            raise ValueError("a name twice")
        return dict(pairs)

    def refuse(constant):
        raise ValueError(f"{constant} is no JSON")

    try:
        return json.loads(raw.decode("utf-8"), object_pairs_hook=members, parse_constant=refuse)
    except RecursionError:
        raise ValueError("nested too deeply")


def is_time(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= 8.64e12


class Receiver:
    """Verifies deliveries, passes them to the handler, and answers. A server, proxies and TLS stand in front of it.

    handler(event): the body as a dict, and in "id" the event's own id. When it returns, the event is handled; when it raises, it
    comes again. webhook_ids: your own webhooks; others may register one for your URL. keys_url: where the issuer publishes its keys,
    if not at its /.well-known/jwks.json. timeout: seconds until it answers 503; the service waits 15.
    """

    def __init__(self, issuer, audience, handler, webhook_ids=None, keys_url=None, store=None, now=time.time, timeout=14):
        for name, value in (("issuer", issuer), ("audience", audience)):
            if not isinstance(value, str) or not value.startswith(("https://", "http://")):
                raise ValueError(f"{name} is {value!r}; it should be a URL.")
        if not callable(handler):
            raise TypeError("The handler should be a function.")
        if isinstance(webhook_ids, str):
            webhook_ids = [webhook_ids]
        if webhook_ids is not None and not webhook_ids:
            raise ValueError("webhook_ids is empty, and would let in none; leave it out to let in all.")
        self._issuer, self._audience, self._handler, self._now = issuer, audience, handler, now
        self._webhook_ids = None if webhook_ids is None else list(webhook_ids)
        self._keys = Keys(keys_url or issuer.rstrip("/") + "/.well-known/jwks.json")
        self._store, self._timeout = store or MemoryStore(), timeout
        self._workers = ThreadPoolExecutor(max_workers=64, thread_name_prefix="tidings")
        self._waiting = ThreadPoolExecutor(max_workers=64, thread_name_prefix="tidings-asgi")
        self.asgi = Asgi(self)

    UNSIGNED = {"method", "token_missing", "body_too_large", "body_incomplete", "format", "algorithm", "key", "keys_unavailable", "signature"}

    # The checks, in this order. Nothing in the token is trusted before its signature is verified.

    def verify(self, authorization, body):
        """The event of a delivery. Raises Refused."""
        match = re.fullmatch(r"(?is)Bearer +(\S.*)", authorization or "")
        if match is None:
            raise Refused("token_missing")
        token = match[1].rstrip()
        header, claims, signature = self._read_token(token)
        if header.get("alg") != "EdDSA":
            raise Refused("algorithm")
        kid = header.get("kid")
        key = self._keys.get(kid if isinstance(kid, str) else None)
        if key is None:
            raise Refused("key")
        raw = from_base64url(signature)
        try:
            if raw is None or len(raw) != 64:
                raise InvalidSignature
            key.verify(raw, token.rpartition(".")[0].encode())
        except InvalidSignature:
            raise Refused("signature") from None
        return self._check_claims(claims, body)

    @staticmethod
    def _read_token(token):
        parts = token.split(".")
        if len(token) > MAX_TOKEN_CHARACTERS or len(parts) != 3 or not re.fullmatch(r"[A-Za-z0-9_-]*", parts[2]):
            raise Refused("format")
        try:
            header, claims = (strict_json(from_base64url(part) or b"", repeated=False) for part in parts[:2])
        except ValueError:
            raise Refused("format") from None
        if not isinstance(header, dict) or not isinstance(claims, dict) or "crit" in header or "b64" in header:
            raise Refused("format")
        if "typ" in header and not (isinstance(header["typ"], str) and re.fullmatch(r"(?i)(application/)?jwt", header["typ"])):
            raise Refused("format")
        return header, claims, parts[2]

    def _check_claims(self, claims, body):
        now = self._now()
        if claims.get("iss") != self._issuer:
            raise Refused("issuer")
        if claims.get("aud") != self._audience:
            raise Refused("audience")
        exp, iat, jti = claims.get("exp"), claims.get("iat"), claims.get("jti")
        if not is_time(exp) or now >= exp or (is_time(iat) and not 0 < exp - iat <= TOKEN_LIFETIME_SECONDS):
            raise Refused("expiry")
        try:
            event = strict_json(body)
        except ValueError:
            event = None
        if not isinstance(jti, str) or jti == "" or not isinstance(event, dict) or event.get("eventId") != jti:
            raise Refused("jti")
        if "body_sha256" in claims:  # a token of an older server has none
            digest = base64.urlsafe_b64encode(hashlib.sha256(body).digest()).rstrip(b"=").decode()
            if claims["body_sha256"] != digest:
                raise Refused("body_digest")
        if self._webhook_ids is not None and event.get("webhookId") not in self._webhook_ids:
            raise Refused("webhook")
        nbf = claims.get("nbf", iat)
        if not is_time(iat) or not is_time(nbf) or max(iat, nbf) > now + CLOCK_TOLERANCE_SECONDS:
            raise Refused("issued_at")
        # Signed, but unknown to this receiver: 5XX, so that nothing is lost.
        if not all(isinstance(event.get(name), str) for name in ("webhookId", "eventType", "eventTime")):
            raise Refused("body")
        if not isinstance(event.get("payload"), dict):
            raise Refused("body")
        sub = claims.get("sub")
        return {**event, "id": sub if isinstance(sub, str) and sub else jti}

    def _handle_once(self, event):
        key = event["eventId"]
        try:
            status, owner = self._store.claim(key, CLAIM_SECONDS)
        except Exception as error:
            raise Refused("replay_store_unavailable") from error
        if status != "claimed":
            raise Refused("replay" if status == "handled" else "in_progress")
        try:
            if event["eventType"] != "ping":
                self._handler(event)
        except BaseException as error:
            self._settle(lambda: self._store.release(key, owner))
            if isinstance(error, RetryLater):
                raise Refused("retry_later", error.seconds) from error
            log.exception("Event %s could not be handled", key)
            raise Refused("handler_failed") from error
        self._settle(lambda: self._store.record(key, owner, HANDLED_SECONDS))

    @staticmethod
    def _settle(change):
        # The outcome of the event stands, even if the store could not record it.
        try:
            change()
        except Exception:
            log.exception("The replay store could not be told")

    def receive(self, method, authorization, body, since=None):
        """(status, headers, body) of the answer. Never raises. `body` is bytes, or the Refused from reading it.

        since: when the request arrived (time.monotonic), by default now; the timeout counts from then.
        """
        since = time.monotonic() if since is None else since
        try:
            if method != "POST":
                raise Refused("method")
            if isinstance(body, Refused):
                raise body if re.match(r"(?i)Bearer +\S", authorization or "") else Refused("token_missing")
            # If a handler is too slow, the receiver answers 503; the handler still counts if it succeeds later.
            event = self.verify(authorization, body)
            handling = self._workers.submit(self._handle_once, event)
            handling.result(max(0, self._timeout - (time.monotonic() - since)))
            return 200, {}, b""
        except FutureTimeout:
            return Refused("timeout").answer()
        except Refused as refused:
            # What strangers send fills no log.
            log.log(logging.DEBUG if refused.code in self.UNSIGNED else logging.INFO, "refused: %s", refused.code)
            return refused.answer()
        except Exception:
            log.exception("The receiver failed")
            return Refused("handler_failed").answer()

    def wsgi(self, environ, start_response):
        """The receiver as a WSGI application (PEP 3333)."""
        status, headers, content = self.receive(
            environ["REQUEST_METHOD"], environ.get("HTTP_AUTHORIZATION"), self._read_wsgi(environ)
        )
        reason = http.client.responses.get(status, "Unknown")
        hop_by_hop = {"Connection"}  # the server's own, says PEP 3333
        listed = [(name, value) for name, value in headers.items() if name not in hop_by_hop]
        start_response(f"{status} {reason}", [*listed, ("Content-Length", str(len(content)))])
        return [content]

    @staticmethod
    def _read_wsgi(environ):
        try:
            length = int(environ.get("CONTENT_LENGTH") or 0)
            if length > MAX_BODY_BYTES:
                return Refused("body_too_large")
            if not length and environ.get("wsgi.input_terminated"):  # a chunked body
                body = environ["wsgi.input"].read(MAX_BODY_BYTES + 1)
                return body if len(body) <= MAX_BODY_BYTES else Refused("body_too_large")
            body = environ["wsgi.input"].read(length) if length else b""
            return body if len(body) == length else Refused("body_incomplete")
        except (OSError, ValueError):
            return Refused("body_incomplete")


class Asgi:
    """The receiver as an ASGI 3 application. An object, because servers and frameworks take a bound method for something else."""

    def __init__(self, receiver):
        self._receiver = receiver

    async def __call__(self, scope, receive, send):
        if scope["type"] == "lifespan":
            return await self._live(receive, send)
        if scope["type"] != "http":
            raise ValueError(f"A receiver has no {scope['type']}.")
        since, body, length = time.monotonic(), [], 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            length += len(message.get("body", b""))
            if length <= MAX_BODY_BYTES:
                body.append(message.get("body", b""))
            if not message.get("more_body") or length > 8 * MAX_BODY_BYTES:
                break
        authorization = dict(scope["headers"]).get(b"authorization", b"").decode("latin-1")
        given = b"".join(body) if length <= MAX_BODY_BYTES else Refused("body_too_large")
        work = self._receiver.receive, scope["method"], authorization, given, since
        status, headers, content = await asyncio.get_running_loop().run_in_executor(self._receiver._waiting, *work)
        encoded = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        encoded.append((b"content-length", str(len(content)).encode()))
        await send({"type": "http.response.start", "status": status, "headers": encoded})
        await send({"type": "http.response.body", "body": content})

    @staticmethod
    async def _live(receive, send):
        while True:
            event = (await receive())["type"]
            await send({"type": f"{event}.complete"})
            if event == "lifespan.shutdown":
                return
