# Started by the servers of python-servers.test.ts, as docs/receivers/python.md starts them.
import os

from fastapi import FastAPI
from tidings_receiver import Receiver


def handle(event):
    print(event["eventType"], flush=True)


receiver = Receiver(issuer=os.environ["ISSUER"], audience=os.environ["AUDIENCE"], handler=handle)
application = receiver.wsgi
app = receiver.asgi

routed = FastAPI()
routed.add_route("/hooks", receiver.asgi)

mounted = FastAPI()
mounted.mount("/hooks", receiver.asgi)
