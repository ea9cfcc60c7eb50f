"""The signatures on a webhook delivery: Standard Webhooks, and our own header with the same HMAC.

What is signed is `{webhook-id}.{webhook-timestamp}.{raw body}` with HMAC-SHA256, keyed by the
decoded bytes of the secret. During a rotation every secret still in force signs, newest first, so a
receiver that knows any one of them can verify. See https://www.standardwebhooks.com.
"""

import base64
import binascii
import hmac
import secrets as randomness
from collections.abc import Sequence

PREFIX = "whsec_"


def new_secret() -> str:
    """Make a webhook's secret: `whsec_` and the base64 of 32 random bytes."""
    return PREFIX + base64.b64encode(randomness.token_bytes(32)).decode("ascii")


class Signer:
    """Signs for one webhook; made once, it holds the decoded secrets and signs many deliveries."""

    __slots__ = ("_keys",)

    def __init__(self, secrets: Sequence[str]) -> None:
        """Take the secrets in force, newest first. Raises ValueError, quoting none of them."""
        if not secrets:
            raise ValueError("A webhook without a secret cannot be signed for.")
        self._keys = [decode(secret) for secret in secrets]

    def headers(self, message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
        """Return the four signature headers of one attempt.

        `message_id` is the event's id, `timestamp` the attempt's time in whole Unix seconds, `body`
        the exact bytes to be sent.
        """
        content = f"{message_id}.{timestamp}.".encode() + body
        signatures = [hmac.digest(key, content, "sha256") for key in self._keys]
        in_base64 = (f"v1,{base64.b64encode(each).decode('ascii')}" for each in signatures)
        in_hex = (f"v2={each.hex()}" for each in signatures)
        return {
            "webhook-id": message_id,
            "webhook-timestamp": str(timestamp),
            "webhook-signature": " ".join(in_base64),
            "x-service-signature-v2": ",".join([f"t={timestamp}", *in_hex]),
        }


def decode(secret: str) -> bytes:
    """Return the HMAC key of a secret. Raises ValueError, which quotes nothing of it."""
    if not secret.startswith(PREFIX):
        raise ValueError(f"A webhook's secret begins with {PREFIX}.")
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(f"A webhook's secret is {PREFIX} and base64.") from None
    if not key:
        raise ValueError("A webhook's secret is empty.")
    return key
