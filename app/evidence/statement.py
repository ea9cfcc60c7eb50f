"""`session-statement.json`: what a completed session held, as the canonical JSON that is signed.

Its root is that of the Merkle tree (RFC 9162) whose leaves' data are the SHA-256 of the bundles,
32 bytes each, in order of creation. docs/formats.md has every member.
"""

import base64
import enum
import secrets
from collections.abc import Iterable, Mapping
from typing import NotRequired, TypedDict

from app.evidence.bundle import NONCE_BYTES, Agent
from app.lib import canonical_json

SCHEMA = "records/session/v1"


class Session(TypedDict):
    """The session: ids are texts, times RFC 3339 in UTC; names are as of the signature."""

    id: str
    external_id: NotRequired[str]
    agent: Agent
    principal: str
    opened_at: str
    completed_at: str
    outcome: str


def write(
    session: Session,
    *,
    records: int,
    root: bytes,
    times: tuple[str, str] | None,
    findings: Mapping[str, int],
    key_id: str,
) -> bytes:
    """Write a new statement, with a nonce of its own: the bytes to sign, hash and store.

    `root` is that over `records` digests. `times` are `created_at` of the first record and of the
    last, None where there is none. `findings` counts by severity. `key_id` will sign it.
    """
    first_at, last_at = times or (None, None)
    nonce = base64.urlsafe_b64encode(secrets.token_bytes(NONCE_BYTES))
    return canonical_json.dumps(
        {
            "schema": SCHEMA,
            "session": session,
            "records": records,
            "root": root.hex(),
            "first_at": first_at,
            "last_at": last_at,
            "findings": dict(findings),
            "nonce": nonce.rstrip(b"=").decode("ascii"),
            "key_id": key_id,
        }
    )


def proof(index: int, size: int, path: Iterable[bytes]) -> bytes:
    """Return `session-proof.json`: a record's place among `size`, and its path to the root."""
    return canonical_json.dumps(
        {"index": index, "size": size, "path": [each.hex() for each in path]}
    )


class Status(enum.StrEnum):
    """What became of a record of a sealed session, as a line of `records.ndjson` says."""

    PRESENT = "present"
    EXPIRED = "expired"
    MISSING = "missing"
    UNSEALED = "unsealed"


def record_line(
    status: Status,
    digest: bytes,
    record_id: str | None = None,
    key_id: str | None = None,
    signature: bytes | None = None,
    leaf_index: int | None = None,
) -> bytes:
    """Return a line of `records.ndjson`; what is not known of the record is null."""
    line = {
        "status": status,
        "sha256": digest.hex(),
        "id": record_id,
        "key_id": key_id,
        "signature": signature and base64.b64encode(signature).decode("ascii"),
        "leaf_index": leaf_index,
    }
    return canonical_json.dumps(line) + b"\n"
