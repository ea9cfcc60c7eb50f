"""Recomputes exported bytes without trust in this service.

The standard library alone, and nothing of the product: docs/formats.md says how each is made.
"""

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping

from dev.demo.scene import Unmet

GENESIS = "0" * 64


def recompute_chain(export: bytes) -> tuple[int, str]:
    """Recompute an exported audit chain; return how many entries it has and the hash of the last.

    Raises `Unmet` at the first entry that does not follow from the one before.
    """
    *lines, trailer = export.splitlines()
    previous = GENESIS
    for number, line in enumerate(lines, 1):
        entry = json.loads(line)
        # Each line is canonical JSON: without its hash it is exactly the bytes that were hashed.
        hashed = line.replace(b'"hash":"%b",' % entry["hash"].encode(), b"", 1)
        digest = hashlib.sha256(hashed).hexdigest()
        if (entry["seq"], entry["prev_hash"], entry["hash"]) != (number, previous, digest):
            raise Unmet(f"entry {number} of the audit chain follows from the one before")
        previous = digest
    end = json.loads(trailer)
    if (end["type"], end["entries"], end["head"]["hash"]) != ("trailer", len(lines), previous):
        raise Unmet("the export is complete: its last line is the trailer of these entries")
    return len(lines), previous


def signature_v2_holds(secret: str, headers: Mapping[str, str], body: bytes) -> bool:
    """Recompute the `x-service-signature-v2` of a delivery from the webhook's secret."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    parts = [part.split("=", 1) for part in headers["x-service-signature-v2"].split(",")]
    timestamp = dict(parts)["t"]
    content = f"{headers['webhook-id']}.{timestamp}.".encode() + body
    expected = hmac.new(key, content, hashlib.sha256).hexdigest()
    return any(name == "v2" and hmac.compare_digest(value, expected) for name, value in parts)
