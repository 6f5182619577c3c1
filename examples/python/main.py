"""pip install cryptography, then: python main.py. In another terminal: npx tidings webhooks create http://127.0.0.1:3000/hooks

For trying it out: in production, use a WSGI or ASGI server in place of wsgiref.
"""
import os
import socketserver
from wsgiref.simple_server import WSGIServer, make_server

from tidings_receiver import Receiver


def handle(event):
    print(event["eventType"], event["payload"], flush=True)


class ThreadingServer(socketserver.ThreadingMixIn, WSGIServer):
    """One idle connection must not stop the others."""

    daemon_threads = True
    request_queue_size = 128


receiver = Receiver(
    issuer=os.environ.get("ISSUER", "http://127.0.0.1:4100"),
    audience=os.environ.get("AUDIENCE", "http://127.0.0.1:3000/hooks"),
    handler=handle,
)
make_server("127.0.0.1", int(os.environ.get("PORT", "3000")), receiver.wsgi, ThreadingServer).serve_forever()
