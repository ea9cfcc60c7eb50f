"""Compares the heads in the log with the chains in the database, in both directions.

`HeadComparison`: each head among the log's leaves must have its entry, its anchor and a tenant,
which a chain that was truncated or rewritten cannot provide. `check`: each anchor of a chain must
be proven in the log by the published root.
"""

from dataclasses import dataclass
from operator import itemgetter
from uuid import UUID

from sqlalchemy.orm import Session

from app.core.audit import view
from app.core.log import proofs
from app.core.log.generations import Generation
from app.core.log.publication import Published
from app.core.log.tree_walk import TreeWalk
from app.database import cursor
from app.errors import AuditChainBroken
from app.ledger import leaves, merkle
from app.ledger.hash_chain import Head
from app.ledger.leaves import AuditHead
from app.ledger.merkle import HASH_BYTES
from app.ledger.tiles import WIDTH, TileId

LOOK_BACK = 64 * WIDTH
"""How many of the log's newest leaves a verification of one chain reads."""

_AT_ONCE = 500
_MOST_UNKNOWN = 1000
_KIND = b'"type":"audit-head"'

# Each row is found by its whole key, however old the statistics are. With those of a table of one
# row, PostgreSQL would read all rows of a tenant, or of the log, for each of them. So one is asked
# for in an order that the primary key alone has without a sort, and none is kept to be read anew.
PLAN = (
    "SET LOCAL enable_seqscan = off; SET LOCAL enable_hashjoin = off;"
    "SET LOCAL enable_mergejoin = off; SET LOCAL enable_sort = off;"
    "SET LOCAL enable_material = off; SET LOCAL enable_bitmapscan = off;"
    "SET LOCAL idle_in_transaction_session_timeout = '60s'"
)
_HELD = """
SELECT asked.place, t.id, h.seq, substr(e.hash, 1, 33),
       a.hash = asked.hash AND a.leaf_hash = asked.leaf_hash, l.generation, l.leaf_index
  FROM unnest(%b::bytea[], %b::bigint[], %b::bytea[], %b::bytea[])
       WITH ORDINALITY AS asked (chain, seq, hash, leaf_hash, place)
  LEFT JOIN tenants AS t ON sha256('audit-chain:'::bytea || t.chain_salt) = asked.chain
  LEFT JOIN audit_heads AS h ON h.tenant_id = t.id
  LEFT JOIN LATERAL (SELECT seq, hash FROM audit_entries WHERE tenant_id = t.id
                        AND seq >= asked.seq ORDER BY seq LIMIT 1) AS e ON e.seq = asked.seq
  LEFT JOIN LATERAL (SELECT seq, hash, leaf_hash FROM audit_anchors WHERE tenant_id = t.id
                        AND seq >= asked.seq ORDER BY seq LIMIT 1) AS a ON a.seq = asked.seq
  LEFT JOIN log_leaves AS l ON l.leaf_hash = asked.leaf_hash
"""
_ANCHORS = f"""
SELECT a.seq, a.hash, a.leaf_hash, e.hash, l.leaf_hash IS NOT NULL,
       CASE WHEN l.generation = %s AND l.leaf_index < %s THEN l.leaf_index END, l.data
  FROM audit_anchors AS a
  LEFT JOIN LATERAL (SELECT seq, hash FROM audit_entries WHERE tenant_id = a.tenant_id
                        AND seq >= a.seq ORDER BY seq LIMIT 1) AS e ON e.seq = a.seq
  LEFT JOIN log_leaves AS l ON l.leaf_hash = a.leaf_hash
 WHERE a.tenant_id = %s AND a.seq > %s ORDER BY a.seq LIMIT {_AT_ONCE}
"""
_NEWEST = """
SELECT a.seq, a.hash FROM audit_anchors AS a JOIN log_leaves AS l ON l.leaf_hash = a.leaf_hash
 WHERE a.tenant_id = %s AND l.generation = %s AND l.leaf_index < %s
 ORDER BY a.seq DESC LIMIT 1
"""


@dataclass
class Found:
    """One chain's anchors: how many, up to which entry, where in the log, and the first break.

    `read_from` is the first of the log's newest leaves that were read for it.
    """

    read_from: int = 0
    checked: int = 0
    pending: int = 0
    through: int | None = None
    index: int | None = None
    broken: AuditChainBroken | None = None

    def note(self, seq: int, reason: str, expected: str, found: str) -> None:
        """Note a break; that with the lowest number stays."""
        self.keep(view.broken(max(seq, 1), reason, expected, found))

    def keep(self, error: AuditChainBroken) -> None:
        """Note a break that was found elsewhere."""
        if self.broken is None or _seq(error) < _seq(self.broken):
            self.broken = error


def _seq(error: AuditChainBroken) -> int:
    return int(str(error.report["seq"]))


class HeadComparison:
    """Compares the audit heads among a log's leaves with the database, a batch at a time."""

    def __init__(
        self,
        generation: Generation,
        *,
        newest: bool = True,
        chain: bytes | None = None,
        acknowledged: frozenset[bytes] = frozenset(),
    ) -> None:
        """`chain` is the one to compare; None: all of them. `newest`: it is not an ended log.

        Chains in `acknowledged` may be without a tenant.
        """
        self._acknowledged = acknowledged
        self.by_tenant: dict[UUID, Found] = {}
        self.unknown: dict[bytes, tuple[int, AuditHead]] = {}
        self.unexpected: int | None = None
        self.matched = 0
        self._generation = generation
        self._newest = newest
        self._wanted = _KIND if chain is None else chain.hex().encode()
        self._batch: list[tuple[int, AuditHead, bytes]] = []

    def add(self, first: int, bundle: bytes, data: list[bytes]) -> None:
        """Collect the heads of one entry bundle, whose first leaf is number `first`."""
        if self._wanted not in bundle:
            return
        for index, each in enumerate(data, first):
            if self._wanted in each:
                head = leaves.audit_head(each)
                if head is not None:
                    self._batch.append((index, head, each))
                elif self.unexpected is None:
                    # The service writes no such leaf, so it anchors nothing.
                    self.unexpected = index

    def settle(self, session: Session) -> None:
        """Compare what was collected with the database."""
        cur = cursor(session)
        cur.execute(PLAN, prepare=False)
        for start in range(0, len(self._batch), _AT_ONCE):
            batch = self._batch[start : start + _AT_ONCE]
            columns = (
                [head.chain for _, head, _ in batch],
                [head.seq for _, head, _ in batch],
                [head.hash for _, head, _ in batch],
                [merkle.leaf_hash(data) for *_, data in batch],
            )
            rows = cur.execute(_HELD.encode(), columns, binary=True).fetchall()
            for place, tenant_id, *there in sorted(rows, key=itemgetter(0)):
                index, head, _ = batch[place - 1]
                if tenant_id is not None:
                    found = self.by_tenant.setdefault(tenant_id, Found())
                    self._compare(found, index, head, *there)
                elif len(self.unknown) < _MOST_UNKNOWN and head.chain not in self._acknowledged:
                    self.unknown.setdefault(head.chain, (index, head))
        self._batch = []

    def _compare(
        self,
        found: Found,
        index: int,
        head: AuditHead,
        end: int | None,
        entry: bytes | None,
        anchored: bool | None,
        generation: int | None,
        leaf_index: int | None,
    ) -> None:
        where = f"leaf {index} of {self._generation.origin}"
        expected = f"{head.hash.hex()}, as {where} says"
        if entry is None:
            place = min(head.seq, (end or 0) + 1)
            found.note(place, "missing", f"entry {head.seq} with {expected}", "none")
        elif entry != head.hash:
            found.note(head.seq, "other_head", expected, entry.hex())
        elif not anchored:
            found.note(head.seq, "anchor_missing", f"a row in audit_anchors for {where}", "none")
        elif self._newest and (generation, leaf_index) != (self._generation.number, index):
            found.note(head.seq, "leaf_missing", f"{where} in log_leaves", _place(leaf_index))
        else:
            self.matched += 1


def compare_newest(
    session: Session, tenant_id: UUID, chain: bytes, last: Published, found: Found
) -> None:
    """Compare the log's newest leaves with one chain.

    A chain that was truncated to an older anchor has a later head there; the leaves before are for
    the daily run. Adds to `found`. Raises `LogDamaged`.
    """
    size = last.checkpoint.size
    begin = max(0, size - LOOK_BACK) // WIDTH * WIDTH
    walk = TreeWalk(last.generation, size)
    if begin:
        walk.begin_at(session, begin)
    heads = HeadComparison(last.generation, chain=chain)
    for bundle in walk.read(session, size):
        heads.add(*bundle)
    walk.require(last)
    heads.settle(session)
    held = heads.by_tenant.get(tenant_id)
    if held is not None and held.broken is not None:
        found.keep(held.broken)
    found.read_from = begin


def newest_anchor(session: Session, tenant_id: UUID, last: Published) -> Head | None:
    """Return the newest anchored head that the published log has by its row, not verified."""
    values = (tenant_id, last.generation.number, last.checkpoint.size)
    row = cursor(session).execute(_NEWEST, values, binary=True).fetchone()
    return None if row is None else Head(row[0], row[1].hex())


def check(
    session: Session,
    tenant_id: UUID,
    chain: bytes,
    last: Published | None,
    found: Found,
    after: int = 0,
) -> None:
    """Prove that the log holds each anchor of entries behind `after`, as the chain has them.

    An anchor whose leaf waits for the log, or for the successor of the log that had it, is pending.
    Adds to `found`. Raises `LogDamaged` where stored tiles are not of the published tree.
    """
    cur = cursor(session)
    cur.execute(PLAN, prepare=False)
    log = (0, 0) if last is None else (last.generation.number, last.checkpoint.size)
    # A row that the owner added may have any number.
    after = after or -(2**63)
    while rows := cur.execute(_ANCHORS.encode(), (*log, tenant_id, after), binary=True).fetchall():
        after = rows[-1][0]
        places = {TileId(0, row[5] // WIDTH) for row in rows if row[5] is not None and row[5] >= 0}
        tiles = {} if last is None else proofs.proven_tiles(session, last, places)
        for seq, digest, leaf_hash, entry, has_leaf, index, data in rows:
            if entry != digest:
                expected = f"{digest.hex()}, as its anchor says"
                found.note(seq, "other_head", expected, "another entry, or none")
            elif has_leaf and index is None:
                found.pending += 1
            else:
                number, offset = divmod(-1 if index is None else index, WIDTH)
                hashes = tiles.get(TileId(0, number), b"")[offset * HASH_BYTES :]
                head = leaves.audit_head(data or b"")
                if (
                    hashes[:HASH_BYTES] != leaf_hash
                    or merkle.leaf_hash(data) != leaf_hash
                    or head is None
                    or (head.chain, head.seq, head.hash) != (chain, seq, digest)
                ):
                    found.note(seq, "anchor_not_in_log", "its leaf in the log", _place(index))
                else:
                    found.checked += 1
                    found.through, found.index = seq, index


def _place(index: int | None) -> str:
    return "none" if index is None else f"another at {index}"
