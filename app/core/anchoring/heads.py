"""Adds the heads of audit chains to the log, as leaves that name no tenant.

A rewritten, truncated or deleted chain no longer leads through its anchored heads. Entries never
change, so a head is read without a lock: an older one is still a head of the chain.
"""

import json
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

import structlog
from sqlalchemy.orm import Session

from app import ids
from app.clock import rfc3339
from app.core.audit import chain
from app.core.jobs import job_queue
from app.core.jobs.steps import Step
from app.database import cursor
from app.ledger import leaves, merkle
from app.ledger.leaves import AuditHead
from app.lib.crypto.sealing import MasterKeys
from app.models import Job

_log = structlog.get_logger(__name__)

KIND = "anchor_audit"
KEY = "due"
# In one transaction: some tens of milliseconds.
MOST_TENANTS = 500

_FIRST = UUID(int=0)

# One index probe at the end of the anchors of each chain that has moved on, however many rest. An
# anchor beyond the chain's end is none of this service, and keeps no head from being anchored.
_DUE = """
SELECT t.id, t.chain_salt, t.chain_seal, h.seq, h.hash, clock_timestamp()
  FROM audit_heads AS h JOIN tenants AS t ON t.id = h.tenant_id
 WHERE h.seq > h.anchored AND t.anchoring_enabled AND h.tenant_id > %(after)s
   AND h.seq > coalesce((SELECT a.seq FROM audit_anchors AS a
                          WHERE a.tenant_id = t.id AND a.seq <= h.seq
                          ORDER BY a.seq DESC LIMIT 1), 0)
 ORDER BY h.tenant_id LIMIT %(most)s
"""
_ANCHORED = """
UPDATE audit_heads AS h SET anchored = new.seq
  FROM unnest(%(tenants)b::uuid[], %(seqs)b::bigint[]) AS new (tenant_id, seq)
 WHERE h.tenant_id = new.tenant_id AND h.anchored < new.seq
"""
# What a restore, or somebody with the database, left of the hint.
SET_RIGHT = """
UPDATE audit_heads AS h SET anchored = found.seq
  FROM audit_heads AS own
 CROSS JOIN LATERAL (SELECT coalesce(max(a.seq), 0) AS seq FROM audit_anchors AS a
                      WHERE a.tenant_id = own.tenant_id AND a.seq <= own.seq) AS found
 WHERE own.tenant_id = ANY (%s) AND h.tenant_id = own.tenant_id AND h.anchored <> found.seq
"""
# Of two workers with the same head at once, the second waits here and then adds nothing.
_ADD = """
WITH added AS (
    INSERT INTO audit_anchors (tenant_id, seq, hash, at, leaf_hash)
    SELECT tenant_id, seq, hash, at, leaf_hash
      FROM unnest(%(tenants)b::uuid[], %(seqs)b::bigint[], %(hashes)b::bytea[],
                  %(times)b::timestamptz[], %(leaf_hashes)b::bytea[])
           AS new (tenant_id, seq, hash, at, leaf_hash)
     ORDER BY tenant_id
    ON CONFLICT DO NOTHING
    RETURNING leaf_hash)
INSERT INTO log_leaves (id, leaf_hash, data)
SELECT new.id, new.leaf_hash, new.data
  FROM unnest(%(ids)b::uuid[], %(leaf_hashes)b::bytea[], %(data)b::bytea[])
       AS new (id, leaf_hash, data)
  JOIN added ON added.leaf_hash = new.leaf_hash
"""


class _Due(NamedTuple):
    """A chain's head beyond its newest anchor, and the moment it was read."""

    tenant_id: UUID
    salt: bytes
    seal: bytes | None
    seq: int
    hash: bytes
    at: datetime

    @property
    def leaf(self) -> bytes:
        """The data of its leaf."""
        chain = leaves.chain_name(self.salt)
        return AuditHead(chain, self.seq, self.hash, rfc3339(self.at)).data


def enqueue_due(session: Session) -> Job | None:
    """Enqueue the anchoring of every chain that is due, in a session that sees all tenants.

    None when nothing is due.
    """
    if not _due(session, _FIRST, 1):
        return None
    return job_queue.recur(session, kind=KIND, dedupe_key=KEY, args={})


def step(master_keys: MasterKeys, session: Session, _tenant_id: UUID, job: Job) -> Step:
    """Anchor the heads of the next tenants, in a session that sees all of them.

    A chain whose salt is not the sealed one is left out: its heads would be those of another.
    """
    progress = json.loads(job.progress or '{"anchored": 0}')
    due = _due(session, _FIRST if job.cursor is None else UUID(hex=job.cursor), MOST_TENANTS)
    sealed = []
    for each in due:
        fault = chain.salt_fault(master_keys, each.tenant_id, each.salt, each.seal)
        if fault is None:
            sealed.append(each)
        else:
            tenant = ids.text("ten", each.tenant_id)
            _log.critical("audit_chain_not_sealed", tenant_id=tenant, found=fault)
    progress["anchored"] += _add(session, sealed)
    return Step(due[-1].tenant_id.hex if len(due) == MOST_TENANTS else None, progress)


def _due(session: Session, after: UUID, most: int) -> list[_Due]:
    rows = cursor(session).execute(_DUE, {"after": after, "most": most}, binary=True)
    return [_Due(*row) for row in rows.fetchall()]


def _add(session: Session, due: Sequence[_Due]) -> int:
    """Add anchors with their leaves; return how many were new."""
    if not due:
        return 0
    data = [each.leaf for each in due]
    values = {
        "tenants": [each.tenant_id for each in due],
        "seqs": [each.seq for each in due],
        "hashes": [each.hash for each in due],
        "times": [each.at for each in due],
        "leaf_hashes": [merkle.leaf_hash(each) for each in data],
        "ids": [ids.new(each.at) for each in due],
        "data": data,
    }
    added = cursor(session).execute(_ADD, values).rowcount
    cursor(session).execute(_ANCHORED, values)
    return added
