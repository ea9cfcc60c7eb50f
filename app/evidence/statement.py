"""`session-statement.json`: what a completed session held, as the canonical JSON that is signed.

Its root is that of the Merkle tree (RFC 9162) whose leaves' data are the SHA-256 of the bundles,
32 bytes each, in order of creation. docs/formats.md has every member.
"""

import base64
import secrets
from collections.abc import Mapping
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
