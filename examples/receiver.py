# pip install "pyjwt[crypto]", then: python receiver.py
# In another terminal: npx tidings webhooks create http://127.0.0.1:3000/hooks
import json
import os
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import jwt

ISSUER = os.environ.get("ISSUER", "http://127.0.0.1:4100")
AUDIENCE = os.environ.get("AUDIENCE", "http://127.0.0.1:3000/hooks")

keys = jwt.PyJWKClient(f"{ISSUER}/.well-known/jwks.json", lifespan=300, cooldown_duration=10, timeout=5)
handled = set()  # several processes share a store, such as Redis with SET NX EX


def verify(authorization, body):
    """The event. Raises when the token or the body is not as it should be."""
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() != "bearer":
        raise jwt.InvalidTokenError("no bearer token")
    claims = jwt.decode(
        token,
        keys.get_signing_key_from_jwt(token),
        algorithms=["EdDSA"],
        issuer=ISSUER,
        audience=AUDIENCE,
        # PyJWT allows for no difference between two clocks; iat is checked below.
        options={"require": ["iss", "aud", "exp", "jti", "iat"], "strict_aud": True, "verify_iat": False},
    )
    if claims["iat"] > time.time() + 60:
        raise jwt.ImmatureSignatureError("made in the future")
    event = json.loads(body)
    if event["eventId"] != claims["jti"] or claims["jti"] in handled:
        raise jwt.InvalidTokenError("of another event, or a replay")
    return event


def handle(event):
    print(event["eventType"], event["payload"], flush=True)


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        try:
            event = verify(self.headers.get("Authorization", ""), body)
        except jwt.PyJWKClientConnectionError:
            return self.answer(503)  # no fault of the sender: it comes again
        except (jwt.PyJWTError, ValueError, KeyError, TypeError):
            return self.answer(401)
        try:
            handle(event)
        except Exception:
            return self.answer(500)  # it comes again, under the same jti
        handled.add(event["eventId"])
        self.answer(200)

    def answer(self, status):
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()


HTTPServer(("127.0.0.1", int(os.environ.get("PORT", "3000"))), Receiver).serve_forever()
