"""Print of each webhook whether it is genuine: WEBHOOK_SECRET=whsec_… python3 receiver.py 9000."""

import base64
import hmac
import os
import sys
import time
from collections.abc import Mapping
from email.message import Message
from http.server import BaseHTTPRequestHandler, HTTPServer


def verify(secret: str, headers: Mapping[str, str] | Message, body: bytes) -> bool:
    """Say whether the body was signed with this secret, within the last five minutes."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    content = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    expected = b"v1," + base64.b64encode(hmac.digest(key, content, "sha256"))
    signatures = headers["webhook-signature"].encode().split()
    recent = abs(time.time() - int(headers["webhook-timestamp"])) < 300
    return recent and any(hmac.compare_digest(each, expected) for each in signatures)


class Receiver(BaseHTTPRequestHandler):
    """Answers 204 to what is genuine, and 401 to the rest."""

    def do_POST(self) -> None:
        """Read a delivery whole, and verify it before anything else."""
        body = self.rfile.read(int(self.headers["content-length"]))
        genuine = verify(os.environ["WEBHOOK_SECRET"], self.headers, body)
        verdict = "genuine" if genuine else "FORGED"
        print(f"{verdict} {self.headers['webhook-id']} {body.decode()}")
        self.send_response(204 if genuine else 401)
        self.end_headers()


if __name__ == "__main__":
    HTTPServer(("127.0.0.1", int(sys.argv[1])), Receiver).serve_forever()
