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
    return vector["body"].encode() if "body" in vector else base64.b64decode(vector["bodyBase64"])


def by_wsgi(application, vector, method="POST", body=None):
    body = body_of(vector) if body is None else body
    answered = {}
    environ = {"REQUEST_METHOD": method, "CONTENT_LENGTH": str(len(body)), "wsgi.input": io.BytesIO(body)}
    if vector["authorization"] is not None:
        environ["HTTP_AUTHORIZATION"] = vector["authorization"]
    content = application(environ, lambda status, headers: answered.update(status=int(status[:3]), headers=dict(headers)))
    return answered["status"], answered["headers"], b"".join(content)


def by_asgi(application, vector, method="POST"):
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
                status, _, content = door(getattr(receiver(vector), attribute), vector)
                self.assertEqual(status, vector["verdict"]["status"])
                if status != 200:
                    self.assertEqual(json.loads(content)["error"], vector["verdict"]["code"])

    def test_by_wsgi(self):
        self.check(by_wsgi, "wsgi")

    def test_by_asgi(self):
        self.check(by_asgi, "asgi")


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
        done = threading.Event()
        given = receiver(handler=lambda event: done.wait(10), timeout=0.2)
        self.assertEqual(by_wsgi(given.wsgi, GOOD)[0], 503)
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
    def test_a_known_key_waits_for_no_fetch_whatever_strangers_send(self):
        now = [0.0]
        keys = Keys(f"{ORIGIN}/published", now=lambda: now[0])
        kid = FILE["keySets"]["published"]["body"]["keys"][0]["kid"]
        self.assertIsNotNone(keys.get(kid))
        before = KeySets.requests
        for number in range(30):
            self.assertIsNone(keys.get(f"stranger {number}"))
        self.assertEqual(KeySets.requests, before)
        keys._url = f"{ORIGIN}/hangs"
        now[0] = 3000
        threading.Thread(target=lambda: self.assertRaises(Refused, keys.get, "stranger"), daemon=True).start()
        started = time.monotonic()
        self.assertIsNotNone(keys.get(kid))
        self.assertLess(time.monotonic() - started, 1)

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


if __name__ == "__main__":
    unittest.main()
