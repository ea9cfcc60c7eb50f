"""Audit chains by the hundred thousand entries, and leaves of the log that anchors them."""

import secrets
from collections.abc import Callable
from hashlib import sha256
from typing import Any
from uuid import UUID

import psycopg

from app import ids
from app.clock import now, rfc3339
from app.core.anchoring import heads
from app.core.jobs import leases, steps
from app.core.log.sequencer import Sequencer
from app.database import Database, cursor
from app.ledger import hash_chain, leaves, merkle
from app.models import NO_TENANT
from app.settings import Settings
from bench.lab import owner_url

INSERT = """
INSERT INTO {table} (id, leaf_hash, data)
SELECT * FROM unnest(%b::uuid[], %b::bytea[], %b::bytea[])
"""
_LEAVES = 1_000

Rows = tuple[list[Any], list[bytes], list[bytes]]


def add_leaves(database: Database, count: int) -> None:
    """Have leaves of records wait for the log."""
    with database.across_tenants() as session:
        cursor(session).execute(INSERT.format(table="log_leaves").encode(), rows(count))


def rows(count: int) -> Rows:
    """Return the columns of as many new leaves: ids, hashes and data."""
    data = [leaves.record(secrets.token_bytes(32)) for _ in range(count)]
    return [ids.new() for _ in data], [merkle.leaf_hash(each) for each in data], data


def grow(
    settings: Settings,
    database: Database,
    sequencer: Sequencer,
    tenant_id: UUID,
    count: int,
    portions: int,
) -> list[bytes]:
    """Make a chain longer, anchor it after each portion, fill the log; return the last bodies."""
    made: list[tuple[Any, ...]] = []
    with psycopg.connect(owner_url(settings)) as owner:
        seq, digest = owner.execute(
            "SELECT seq, hash FROM audit_heads WHERE tenant_id = %s", (tenant_id,)
        ).fetchone() or (0, b"")
        for _ in range(portions):
            made = []
            for _ in range(count // portions):
                seq += 1
                written = body(tenant_id, seq, digest)
                digest = sha256(written).digest()
                action, at = written[11 : written.index(b'"', 11)].decode(), _MOMENT
                # The copies to filter by: that of the outcome last, as `body` has them.
                key, tenant = ids.text("key", tenant_id), ids.text("ten", tenant_id)
                made.append((tenant_id, seq, written, digest, action, at, key, tenant, "success"))
            with owner.cursor().copy("COPY audit_entries FROM STDIN") as copy:
                for row in made:
                    copy.write_row(row)
            owner.execute(
                "UPDATE audit_heads SET seq = %s, hash = %s WHERE tenant_id = %s",
                (seq, digest, tenant_id),
            )
            owner.commit()
            _anchor(settings, database)
            add_leaves(database, _LEAVES)
            sequencer.run()
        owner.execute("ANALYZE audit_entries, log_leaves")
    return [row[2] for row in made]


_MOMENT = now()
_ACTIONS: tuple[tuple[str, Callable[[int], dict[str, Any]]], ...] = (
    ("share_link.open", lambda n: {"link_id": f"shl_{n:032x}", "record_id": f"rec_{n:032x}"}),
    ("webhook.update", lambda n: {"changed": {"max_in_flight": {"new": n % 64, "old": 4}}}),
    ("delivery.replay", lambda n: {"delivery_id": f"dlv_{n:032x}"}),
    ("key.mint", lambda n: {"name": f"deploy {n}", "pin": None, "role": "write"}),
    ("settings.update", lambda n: {"bundle_retention_days": {"new": n % 3650, "old": None}}),
)


def body(tenant_id: UUID, seq: int, before: bytes) -> bytes:
    """Return the bytes of an entry behind the one with the hash `before`."""
    # One in twenty has details that are no flat object.
    action, details = _ACTIONS[4 if seq % 20 == 0 else seq % 4]
    tenant = ids.text("ten", tenant_id)
    return hash_chain.entry_bytes(
        {
            "seq": seq,
            "at": rfc3339(_MOMENT),
            "tenant_id": tenant,
            "actor": {"type": "key", "id": ids.text("key", tenant_id), "role": "admin"},
            "action": action,
            "target": {"type": "tenant", "id": tenant},
            "details": details(seq),
            "request_id": tenant_id.hex,
            "outcome": "success",
            "origin": "192.0.2.7",
            "prev_hash": before.hex(),
        }
    )


def _anchor(settings: Settings, database: Database) -> None:
    with database.across_tenants() as session:
        job = heads.enqueue_due(session)
    while job is not None:
        with database.across_tenants() as session:
            job = leases.claim(session, NO_TENANT, job.id)
            if job is not None:
                steps.advance(
                    session, job, heads.step(settings.master_keys, session, NO_TENANT, job)
                )
