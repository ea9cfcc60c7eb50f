"""Compares the heads in the log with the chains in the database.

An anchored head stays in the log. So each leaf must have its entry, its anchor and a tenant, which
a chain that was truncated or rewritten cannot provide.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any
from uuid import UUID

from sqlalchemy.orm import Session

from app.core.audit import view
from app.core.log.generations import Generation
from app.database import cursor
from app.errors import AuditChainBroken
from app.ledger import leaves, merkle
from app.ledger.leaves import AuditHead
from app.ledger.tiles import WIDTH

_AT_ONCE = 500
_MOST_UNKNOWN = 1000
_KIND = b'"type":"audit-head"'

# Each row is found by its whole key, however old the statistics are. With those of a table of one
# row, PostgreSQL would read all rows of a tenant for each of them. So one is asked for in an order
# that the primary key alone has without a sort.
PLAN = (
    "SET LOCAL enable_seqscan = off; SET LOCAL enable_hashjoin = off;"
    "SET LOCAL enable_mergejoin = off; SET LOCAL enable_sort = off; SET LOCAL jit = off;"
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
# An anchor's leaf waits until the log took it in; of a successor's, until it has done so once more.
_ROWS = """
SELECT a.tenant_id, sha256('audit-chain:'::bytea || t.chain_salt) AS chain,
       a.seq, a.hash, a.leaf_hash, l.leaf_index,
       coalesce(l.leaf_index IS NULL OR l.generation < %(generation)s
                OR l.leaf_index >= %(size)s, false) AND l.leaf_hash IS NOT NULL AS waits,
       (e.hash = a.hash) IS TRUE AS agrees
  FROM audit_anchors AS a
  LEFT JOIN tenants AS t ON t.id = a.tenant_id
  LEFT JOIN log_leaves AS l ON l.leaf_hash = a.leaf_hash
  LEFT JOIN LATERAL (SELECT seq, hash FROM audit_entries WHERE tenant_id = a.tenant_id
                        AND seq >= a.seq ORDER BY seq LIMIT 1) AS e ON e.seq = a.seq
"""
_COUNT = f"""
SELECT count(*) FILTER (WHERE NOT waits), count(*) FILTER (WHERE NOT agrees) FROM ({_ROWS}) AS r
"""
_DISAGREEING = f"""
SELECT tenant_id, seq, hash FROM ({_ROWS}) AS r WHERE NOT agrees ORDER BY tenant_id, seq LIMIT 1000
"""
_CLAIMED = f"""
SELECT tenant_id, seq, leaf_index, leaf_hash, chain, hash FROM ({_ROWS}) AS r
 WHERE NOT waits AND (tenant_id, seq) > (%(tenant)s, %(after)s) ORDER BY tenant_id, seq LIMIT 1000
"""


@dataclass
class Found:
    """One chain's anchors: how many, up to which entry, where in the log, and mismatches."""

    checked: int = 0
    through: int | None = None
    index: int | None = None
    broken: AuditChainBroken | None = None

    def count(self, seq: int, index: int) -> None:
        """Note that leaf `index` holds entry `seq`."""
        self.checked += 1
        if self.through is None or seq > self.through:
            self.through, self.index = seq, index

    def note(self, seq: int, reason: str, expected: str, found: str) -> None:
        """Note a break; that with the lowest number stays."""
        self.keep(view.broken(max(seq, 1), reason, expected, found))

    def keep(self, error: AuditChainBroken) -> None:
        """Note a break that was found elsewhere."""
        if self.broken is None or _seq(error) < _seq(self.broken):
            self.broken = error


def _seq(error: AuditChainBroken) -> int:
    return int(str(error.report["seq"]))


class Leaves:
    """Holds the audit heads among a log's leaves against the database, a batch at a time."""

    def __init__(
        self,
        session: Session,
        generation: Generation,
        *,
        newest: bool,
        chain: bytes | None,
        acknowledged: frozenset[bytes] = frozenset(),
    ) -> None:
        """`chain` is the one to compare; None: all of them. `newest`: it is the log.

        Chains in `acknowledged` may be without a tenant.
        """
        self._acknowledged = acknowledged
        self.generation = generation
        self.newest = newest
        self.by_tenant: dict[UUID, Found] = {}
        self.unknown: dict[bytes, tuple[int, AuditHead]] = {}
        self.unexpected: int | None = None
        self.matched = 0
        self._session = session
        self._wanted = _KIND if chain is None else chain.hex().encode()
        self._batch: list[tuple[int, AuditHead, bytes]] = []

    def take(self, first: int, bundle: bytes, data: list[bytes]) -> None:
        """Look through one entry bundle, whose first leaf is number `first`."""
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
        if len(self._batch) >= _AT_ONCE:
            self.settle()

    def settle(self) -> None:
        """Hold what was collected against the database."""
        batch, self._batch = self._batch, []
        if not batch:
            return
        columns = (
            [head.chain for _, head, _ in batch],
            [head.seq for _, head, _ in batch],
            [head.hash for _, head, _ in batch],
            [merkle.leaf_hash(data) for *_, data in batch],
        )
        rows = cursor(self._session).execute(_HELD.encode(), columns, binary=True).fetchall()
        for place, tenant_id, *there in sorted(rows, key=itemgetter(0)):
            index, head, _ = batch[place - 1]
            if tenant_id is None:
                if len(self.unknown) < _MOST_UNKNOWN and head.chain not in self._acknowledged:
                    self.unknown.setdefault(head.chain, (index, head))
                continue
            self._hold(self.by_tenant.setdefault(tenant_id, Found()), index, head, *there)

    def _hold(
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
        where = f"leaf {index} of {self.generation.origin}"
        expected = f"{head.hash.hex()}, as {where} says"
        if entry is None:
            place = min(head.seq, (end or 0) + 1)
            found.note(place, "missing", f"entry {head.seq} with {expected}", "none")
        elif entry != head.hash:
            found.note(head.seq, "other_head", expected, entry.hex())
        elif not anchored:
            found.note(head.seq, "anchor_missing", f"a row in audit_anchors for {where}", "none")
        elif self.newest and (generation, leaf_index) != (self.generation.number, index):
            found.note(head.seq, "leaf_missing", f"{where} in log_leaves", _place(leaf_index))
        elif self.newest:
            self.matched += 1
            found.count(head.seq, index)


def anchors_astray(
    session: Session, seen: Leaves, size: int, read_bundle: Callable[[int], list[bytes]]
) -> Iterator[tuple[UUID, Sequence[Any]]]:
    """Yield (tenant, arguments of `Found.note`) for anchors that are not as the log has them.

    `seen` has taken every leaf of the newest log up to `size`. Anchors whose leaf waits for the log
    need none yet, but they too must agree with the chain. `read_bundle` returns the leaves' data of
    an entry bundle by number; it is asked only if there is an anchor too many.
    """
    values: dict[str, object] = {"generation": seen.generation.number, "size": size}
    cur = cursor(session)
    covered, disagreeing = cur.execute(_COUNT.encode(), values).fetchone() or (0, 0)
    if disagreeing:
        for tenant_id, seq, digest in cur.execute(_DISAGREEING.encode(), values).fetchall():
            expected = f"{digest.hex()}, as its anchor says"
            yield tenant_id, (seq, "other_head", expected, "another entry, or none")
    if covered == seen.matched:
        return
    tenant, after = UUID(int=0), -1
    at: tuple[int, list[bytes]] = (-1, [])
    while rows := cur.execute(
        _CLAIMED.encode(), {**values, "tenant": tenant, "after": after}
    ).fetchall():
        for tenant, after, index, leaf_hash, chain, digest in rows:
            number, offset = divmod(-1 if index is None else index, WIDTH)
            if number >= 0 and number != at[0]:
                at = (number, read_bundle(number))
            data = at[1][offset] if number >= 0 and offset < len(at[1]) else b""
            head = leaves.audit_head(data)
            if (
                head is None
                or (head.chain, head.seq, head.hash) != (chain, after, digest)
                or merkle.leaf_hash(data) != leaf_hash
            ):
                yield tenant, (after, "anchor_not_in_log", "its leaf in the log", _place(index))


def _place(index: int | None) -> str:
    return "none" if index is None else f"another at {index}"
