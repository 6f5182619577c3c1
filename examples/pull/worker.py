"""pip install cryptography, then with TIDINGS_URL, TIDINGS_API_KEY, TIDINGS_API_SECRET and WEBHOOK_ID: python worker.py"""
import base64
import hashlib
import hmac
import json
import os
import pathlib
import sys
import time
import urllib.error
import urllib.request
import uuid
from email.utils import formatdate
from urllib.parse import urlsplit

sys.path.append(str(pathlib.Path(__file__).parent.parent / "python"))
from tidings_receiver import Receiver  # noqa: E402

SERVER = os.environ.get("TIDINGS_URL", "http://127.0.0.1:4100").rstrip("/")
API_KEY = os.environ["TIDINGS_API_KEY"]
API_SECRET = os.environ["TIDINGS_API_SECRET"]
WEBHOOK_ID = os.environ["WEBHOOK_ID"]

TAKE = """mutation ($webhookId: UUID!, $limit: Int, $waitSeconds: Int) {
  taken: takeDeliveries(webhookId: $webhookId, limit: $limit, waitSeconds: $waitSeconds) { deliveryId attempt headers body }
}"""
ANSWER = "mutation ($answers: [DeliveryAnswer!]!) { answerDeliveries(answers: $answers) { counted reason } }"
# No retry mends these.
FINAL = {"UNAUTHENTICATED", "FORBIDDEN", "NOT_FOUND", "BAD_USER_INPUT"}


class ApiError(Exception):
    def __init__(self, error):
        super().__init__(error["message"])
        self.is_final = error["extensions"]["code"] in FINAL


def ask(document, variables):
    """Sends a signed request, and returns its data."""
    url = urlsplit(SERVER + "/graphql")
    body = json.dumps({"query": document, "variables": variables}).encode()
    digest = base64.b64encode(hashlib.sha256(body).digest()).decode()
    signed = {"x-date": formatdate(usegmt=True), "host": url.netloc, "x-content-sha256": digest, "x-nonce": str(uuid.uuid4())}
    text = "\n".join(["POST", url.path, ";".join(signed.values())])
    signature = base64.b64encode(hmac.digest(base64.b64decode(API_SECRET), text.encode(), "sha256")).decode()
    authorization = f"HMAC-SHA256 Credential={API_KEY}&SignedHeaders={';'.join(signed)}&Signature={signature}"
    headers = {**signed, "authorization": authorization, "content-type": "application/json"}
    request = urllib.request.Request(url.geturl(), data=body, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=45) as response:
            answer = json.load(response)
    except urllib.error.HTTPError as error:
        answer = json.load(error)
    if answer.get("errors"):
        raise ApiError(answer["errors"][0])
    return answer["data"]


def patiently(document, variables):
    """Waits for a server that is away; the same answer may be sent again."""
    pause = 0.5
    while True:
        try:
            return ask(document, variables)
        except (ApiError, OSError, ValueError) as error:
            if getattr(error, "is_final", False):
                raise
            print(f"{error} Trying again in {pause} s.", file=sys.stderr)
            time.sleep(pause)
            pause = min(2 * pause, 15)


def handle(event):
    print(event["eventType"], event["payload"], flush=True)


receiver = Receiver(issuer=SERVER, audience=f"{SERVER}/pull/{WEBHOOK_ID}", handler=handle)
while True:
    # One at a time. For more, run more of these.
    for taken in patiently(TAKE, {"webhookId": WEBHOOK_ID, "limit": 1, "waitSeconds": 25})["taken"]:
        authorization = taken["headers"]["authorization"]
        status, headers, body = receiver.receive("POST", authorization, taken["body"].encode())
        answer = {"deliveryId": taken["deliveryId"], "attempt": taken["attempt"], "status": status, "headers": dict(headers)}
        patiently(ANSWER, {"answers": [answer]})
