"""python -m unittest, in this folder. Runs every vector of docs/receivers/vectors.json over HTTP's two doors in Python."""
import asyncio
import base64
import io
import json
import pathlib
import threading
import time
import unittest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tidings_receiver import Keys, MemoryStore, Receiver, Refused, RetryLater, usable_keys

FILE = json.loads((pathlib.Path(__file__).parents[2] / "docs/receivers/vectors.json").read_text())
GOOD = next(vector for vector in FILE["vectors"] if vector["verdict"]["code"] == "ok")


class KeySets(BaseHTTPRequestHandler):
    """Answers as each key set does, at its name; `hangs` never does, and `counted` says how often it was asked."""

    requests = 0

    def do_GET(self):
        KeySets.requests += 1
        name = self.path[1:]
        if name == "hangs":
            time.sleep(60)
        if name == "drips":
            self.send_response(200)
            self.end_headers()
            for _ in range(60):
                time.sleep(0.5)
                self.wfile.write(b" ")
        key_set = FILE["keySets"][name]
        body = key_set["body"] if isinstance(key_set["body"], str) else json.dumps(key_set["body"])
        self.send_response(key_set["status"])
        self.send_header("Location", "/published")
        self.end_headers()
        self.wfile.write(body.encode() + (b" " * 256 * 1024 if name == "huge" else b""))

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), KeySets)
server.daemon_threads = True
threading.Thread(target=server.serve_forever, daemon=True).start()
ORIGIN = f"http://127.0.0.1:{server.server_port}"


def receiver(vector=GOOD, handler=lambda event: None, **options):
    given = {"keys_url": f"{ORIGIN}/{vector['keySet']}", "webhook_ids": vector.get("webhookIds"), "now": lambda: vector["time"]}
    return Receiver(FILE["issuer"], FILE["audience"], handler, **{**given, **options})


def body_of(vector):
    body = vector["body"].encode() if "body" in vector else base64.b64decode(vector["bodyBase64"])
    return body + b" " * vector.get("spaces", 0)


def by_wsgi(application, vector, method=None, body=None):
    method = method or vector.get("method", "POST")
    body = body_of(vector) if body is None else body
    answered = {}
    environ = {"REQUEST_METHOD": method, "CONTENT_LENGTH": str(len(body)), "wsgi.input": io.BytesIO(body)}
    if vector["authorization"] is not None:
        environ["HTTP_AUTHORIZATION"] = vector["authorization"]
    content = application(environ, lambda status, headers: answered.update(status=int(status[:3]), headers=dict(headers)))
    return answered["status"], answered["headers"], b"".join(content)


def by_asgi(application, vector):
    method = vector.get("method", "POST")
    body, sent = body_of(vector), []
    parts = [{"type": "http.request", "body": body[:10], "more_body": True}, {"type": "http.request", "body": body[10:]}]
    headers = [] if vector["authorization"] is None else [(b"authorization", vector["authorization"].encode("utf-8"))]

    async def receive():
        return parts.pop(0)

    async def send(message):
        sent.append(message)

    asyncio.run(application({"type": "http", "method": method, "headers": headers}, receive, send))
    return sent[0]["status"], dict(sent[0]["headers"]), sent[1]["body"]


class Vectors(unittest.TestCase):
    def check(self, door, attribute):
        for vector in FILE["vectors"]:
            with self.subTest(vector["name"]):
                handled = []
                given = receiver(vector, handler=lambda event: handled.append(event["id"]))
                status, _, content = door(getattr(given, attribute), vector)
                self.assertEqual(status, vector["verdict"]["status"])
                self.assertEqual(handled, [vector["verdict"]["handled"]] if vector["verdict"]["handled"] else [])
                if status != 200:
                    self.assertEqual(json.loads(content)["error"], vector["verdict"]["code"])

    def test_by_wsgi(self):
        self.check(by_wsgi, "wsgi")

    def test_by_asgi(self):
        self.check(by_asgi, "asgi")

    def test_sequences(self):
        for sequence in FILE["sequences"]:
            with self.subTest(sequence["name"]):
                steps, now, handled = sequence["steps"], [0], {}
                at = []

                def take(nth):
                    now[0] = steps[nth]["time"]
                    at.append(nth)
                    status, _, content = by_wsgi(given.wsgi, steps[nth])
                    code = json.loads(content)["error"] if content else "ok"
                    verdict = {"status": status, "code": code, "handled": handled.get(nth)}
                    self.assertEqual(verdict, steps[nth]["verdict"])

                def handle(event):
                    nth = at[-1]
                    handled[nth] = event["id"]
                    if nth + 1 < len(steps) and steps[nth + 1].get("during"):
                        take(nth + 1)
                    if steps[nth].get("handler") == "fails":
                        raise ValueError("no")

                given = receiver(handler=handle, now=lambda: now[0])
                for nth, step in enumerate(steps):
                    if not step.get("during"):
                        take(nth)


class Handling(unittest.TestCase):
    def test_is_once(self):
        events = []
        given = receiver(handler=events.append)
        self.assertEqual(by_wsgi(given.wsgi, GOOD)[0], 200)
        status, headers, _ = by_wsgi(given.wsgi, GOOD)
        self.assertEqual(status, 401)
        self.assertIn('error_description="replay"', headers["WWW-Authenticate"])
        self.assertEqual(len(events), 1)
        self.assertNotEqual(events[0]["id"], events[0]["eventId"])

    def test_that_fails_comes_again(self):
        failing = [True]

        def handle(event):
            if failing.pop():
                raise SystemExit("no")
            failing.append(False)

        given = receiver(handler=lambda event: handle(event) if failing else None)
        self.assertEqual(by_wsgi(given.wsgi, GOOD)[0], 500)
        self.assertEqual(by_wsgi(given.wsgi, GOOD)[0], 200)

    def test_that_is_slow_is_answered_and_counts(self):
        begun, done, store = threading.Event(), threading.Event(), MemoryStore()

        def handle(event):
            begun.set()
            done.wait(30)

        self.assertEqual(by_wsgi(receiver(handler=handle, store=store, timeout=0.2).wsgi, GOOD)[0], 503)
        self.assertTrue(begun.wait(10))
        given = receiver(handler=handle, store=store)
        self.assertEqual(json.loads(by_wsgi(given.wsgi, GOOD)[2])["error"], "in_progress")
        done.set()
        deadline = time.monotonic() + 10
        while json.loads(by_wsgi(given.wsgi, GOOD)[2])["error"] != "replay":
            self.assertLess(time.monotonic(), deadline, "it is not recorded")

    def test_asks_for_a_pause(self):
        def handle(event):
            raise RetryLater(29.2)

        status, headers, _ = by_wsgi(receiver(handler=handle).wsgi, GOOD)
        self.assertEqual((status, headers["Retry-After"]), (429, "30"))
        for seconds in (1e21, -1, float("nan"), "5"):
            self.assertRaises(ValueError, RetryLater, seconds)

    def test_of_another_method_and_of_a_long_body(self):
        given = receiver()
        self.assertEqual(by_wsgi(given.wsgi, GOOD, method="GET")[0], 405)
        self.assertEqual(by_wsgi(given.wsgi, GOOD, body=b"x" * (1024 * 1024 + 1))[0], 413)
        self.assertEqual(by_wsgi(given.wsgi, {**GOOD, "authorization": None}, body=b"x" * (1024 * 1024 + 1))[0], 401)

    def test_the_store_is_asked_to_claim_for_a_minute_and_to_remember_for_96_hours_and_its_failure_loses_nothing(self):
        class Asked:
            times, is_away = [], False

            def claim(self, key, seconds):
                if self.is_away:
                    raise OSError("away")
                self.times.append(seconds)
                return "claimed", "owner"

            def record(self, key, owner, seconds):
                self.times.append(seconds)
                raise OSError("away")

        store = Asked()
        given = receiver(store=store).wsgi
        self.assertEqual((by_wsgi(given, GOOD)[0], store.times), (200, [60, 96 * 3600]))
        store.is_away = True
        self.assertEqual(by_wsgi(given, GOOD)[0], 503)

    def test_claims_are_fenced(self):
        now = [0]
        store = MemoryStore(max_entries=2, now=lambda: now[0])
        _, late = store.claim("a", 60)
        now[0] = 60
        status, owner = store.claim("a", 60)
        self.assertEqual(status, "claimed")
        self.assertFalse(store.release("a", late))
        self.assertFalse(store.record("a", late, 60))
        self.assertEqual(store.claim("a", 60)[0], "in_progress")
        self.assertTrue(store.record("a", owner, 600))
        for key in ("b", "c"):
            store.record(key, "", 600)
        self.assertEqual([store.claim(key, 60)[0] for key in "abc"], ["claimed", "handled", "handled"])


class KeySource(unittest.TestCase):
    KID = FILE["keySets"]["published"]["body"]["keys"][0]["kid"]

    def known(self):
        now = [0.0]
        keys = Keys(f"{ORIGIN}/published", now=lambda: now[0])
        self.assertIsNotNone(keys.get(self.KID))
        return keys, now

    def test_a_fresh_key_waits_for_no_fetch_whatever_strangers_send(self):
        keys, now = self.known()
        before = KeySets.requests
        for number in range(30):
            self.assertIsNone(keys.get(f"stranger {number}"))
        self.assertEqual(KeySets.requests, before)
        keys._url = f"{ORIGIN}/hangs"
        now[0] = 299
        threading.Thread(target=lambda: self.assertRaises(Refused, keys.get, "stranger"), daemon=True).start()
        deadline = time.monotonic() + 5
        while KeySets.requests == before and time.monotonic() < deadline:
            time.sleep(0.005)
        started = time.monotonic()
        for number in range(100):  # more than there are threads
            self.assertRaises(Refused, keys.get, f"stranger {number}")
        self.assertIsNotNone(keys.get(self.KID))
        self.assertLess(time.monotonic() - started, 1)

    def test_a_revoked_key_counts_no_longer_after_300_seconds(self):
        for age in (301, 3590):
            keys, now = self.known()
            keys._url = f"{ORIGIN}/rotated"
            now[0] = age
            found = []
            threads = [threading.Thread(target=lambda: found.append(keys.get(self.KID))) for _ in range(20)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(found, [None] * 20)

    def test_old_keys_serve_for_an_hour_while_the_issuer_is_away_and_is_not_asked_all_the_time(self):
        keys, now = self.known()
        keys._url = f"{ORIGIN}/away"
        before = KeySets.requests
        for now[0] in range(301, 310):
            self.assertIsNotNone(keys.get(self.KID))
            self.assertRaises(Refused, keys.get, "stranger")
        self.assertEqual(KeySets.requests, before + 1)
        now[0] = 3601
        self.assertRaises(Refused, keys.get, self.KID)

    def test_a_set_that_drips_is_given_up(self):
        started = time.monotonic()
        self.assertRaises(Refused, Keys(f"{ORIGIN}/drips").get, "any")
        self.assertLess(time.monotonic() - started, 7)

    def test_an_empty_set_replaces_no_good_one(self):
        self.assertRaises(ValueError, usable_keys, b'{"keys":[]}')
        now = [0.0]
        keys = Keys(f"{ORIGIN}/published", now=lambda: now[0])
        kid = FILE["keySets"]["published"]["body"]["keys"][0]["kid"]
        keys.get(kid)
        keys._url = f"{ORIGIN}/empty"
        now[0] = 20
        self.assertRaises(Refused, keys.get, "stranger")
        self.assertIsNotNone(keys.get(kid))


class Options(unittest.TestCase):
    def test_an_empty_list_of_webhooks_is_refused(self):
        self.assertRaises(ValueError, receiver, webhook_ids=[])

    def test_what_strangers_send_fills_no_log(self):
        with self.assertNoLogs("tidings.receiver", "INFO"):
            receiver().receive("POST", "Bearer a.b.c", b"{}")


if __name__ == "__main__":
    unittest.main()
