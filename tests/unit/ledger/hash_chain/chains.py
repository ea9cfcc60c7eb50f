"""Chains of hashes, and their verification."""

import json
from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import Any

import rfc8785

from app.ledger.hash_chain import (
    FORMER_MEMBERS,
    GENESIS,
    START,
    Break,
    Head,
    Reason,
    entry_bytes,
    verify,
)

Row = tuple[int, bytes, bytes]
TENANT = "ten_0192f0c4aaaabbbbccccddddeeeeffff"
STRANGER = "ten_ffffeeeeddddccccbbbbaaaa4c0f2910"
DETAILS: list[dict[str, Any]] = [
    {"name": "the test's tenant"},
    {"name": "a key", "role": "read"},
    {},
    {"event_types": ["finding.created", "session.completed"], "max_in_flight": 4},
    {"bundle_retention_days": {"new": 30, "old": None}},
    {"name": 'Zürich "quoted"\n'},
    {"count": 0, "share": 0.5, "yes": True},
]


def fields(seq: int, prev_hash: str, **changes: Any) -> dict[str, Any]:
    return {
        "seq": seq,
        "at": f"2026-11-21T09:00:{seq % 60:02}.123456Z",
        "tenant_id": TENANT,
        "actor": {"type": "key", "id": "key_1", "role": "admin"} if seq > 1 else SYSTEM,
        "action": "webhook.create" if seq > 1 else "tenant.create",
        "target": {"type": "webhook", "id": f"whk_{seq}"},
        "details": DETAILS[(seq - 1) % len(DETAILS)],
        "request_id": None if seq == 1 else f"req_{seq}",
        "outcome": "success",
        "origin": None if seq == 1 else "192.0.2.1",
        "prev_hash": prev_hash,
    } | changes


def former(seq: int, prev_hash: str) -> bytes:
    """Return the body of an entry that was appended before entries had outcome and origin."""
    whole = fields(seq, prev_hash)
    return rfc8785.dumps({name: whole[name] for name in FORMER_MEMBERS})


SYSTEM = {"type": "system", "id": None}


def chain(length: int) -> list[Row]:
    rows: list[Row] = []
    prev_hash = GENESIS
    for seq in range(1, length + 1):
        rows.append(sealed(seq, entry_bytes(fields(seq, prev_hash))))
        prev_hash = rows[-1][2].hex()
    return rows


def sealed(seq: int, body: bytes) -> Row:
    return seq, body, sha256(body).digest()


def head_of(rows: list[Row]) -> Head:
    return Head(rows[-1][0], rows[-1][2].hex())


def check(rows: list[Row], *, end: Head | None = None, **options: Any) -> Break | None:
    """Verify rows up to `end`; without it, up to what the last row says of itself."""
    own = head_of(rows) if rows else START
    return verify(bare(rows), tenant_id=TENANT, end=end or own, **options)


def bare(rows: Iterable[Row]) -> Iterator[tuple[int, bytes, bytes, None]]:
    return ((*row, None) for row in rows)


def broken(rows: list[Row], **options: Any) -> tuple[int, Reason]:
    found = check(rows, **options)
    assert found is not None
    return found.seq, found.reason


ROWS = chain(20)
END = head_of(ROWS)


def nested(levels: int) -> Any:
    return json.loads("[" * levels + "]" * levels)


def placeless(entry: dict[str, Any]) -> dict[str, Any]:
    return {name: entry[name] for name in entry if name not in {"at", "prev_hash", "seq"}}
