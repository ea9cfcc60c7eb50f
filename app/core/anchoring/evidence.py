"""Chooses the best evidence for a leaf: one checkpoint, with its proof, timestamp and cosignatures.

A quorum with a timestamp ranks before a quorum, then a timestamp, then the log alone; of equals the
earliest. Stored rows are verified before they count.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import IntEnum, StrEnum

from cryptography.x509 import Certificate
from sqlalchemy.orm import Session

from app.core.anchoring import quorum
from app.core.anchoring.checkpoint_cache import CachedCheckpoint, CheckpointCache
from app.core.log import generations, publication
from app.core.log.publication import Published
from app.database import cursor
from app.errors import LogPending
from app.ledger.notes import Malformed, Signature
from app.ledger.policy import NONE, Policy
from app.lib.crypto.timestamps import Stamp

Find = Callable[[Mapping[int, int]], Mapping[int, int]]
"""Finds the first candidate's size in each range: beyond the key, up to and with the value."""

_MOST_REFUSED = 64


class FirstHolding:
    """The first size beyond an index whose candidate holds; good for one transaction."""

    def __init__(self, end: int, find: Find, holds: Callable[[int], bool]) -> None:
        """`end` is the largest size there is."""
        self._end = end
        self._find = find
        self._holds = holds
        self._found: dict[int, int | None] = {}

    def prepare(self, indexes: Iterable[int]) -> None:
        """Find the answers for these indexes, all below `end`, by one query for all of them."""
        new = set(indexes) - self._found.keys()
        if not new:
            return
        points = sorted(new | self._found.keys())
        uppers = dict(zip(points, [*points[1:], self._end], strict=True))
        candidates = self._find({index: uppers[index] for index in new})
        for index in sorted(new, reverse=True):
            first = self._first(candidates.get(index), uppers[index])
            # A checkpoint beyond the next index is beyond this one as well.
            self._found[index] = self._found.get(uppers[index]) if first is None else first

    def beyond(self, index: int) -> int | None:
        """Return the answer for an index that was prepared; None if nothing holds."""
        return self._found.get(index)

    def _first(self, size: int | None, upper: int) -> int | None:
        """Return the first from this candidate on that holds, up to `upper`.

        A table full of invalid rows must not have every reader check all of them: after so many the
        search gives up.
        """
        for _ in range(_MOST_REFUSED):
            if size is None or self._holds(size):
                return size
            size = self._find({size: upper}).get(size)
        return None


class Rank(IntEnum):
    """Strength of a checkpoint's evidence, best last; one bit each for timestamp and witnesses."""

    LOG = 0
    TIMESTAMPED = 1
    WITNESSED = 2
    BOTH = TIMESTAMPED | WITNESSED


class Voucher(StrEnum):
    """Kinds of evidence for an anchor: the service's own log, timestamps and witnesses for that."""

    LOG = "log"
    TIMESTAMPS = "timestamps"
    WITNESSES = "witnesses"


@dataclass(frozen=True)
class Evidence:
    """A published checkpoint with its timestamp and cosignatures.

    `published.note` has the log's own signature only; `cosignatures` are note lines, without their
    newline, also of algorithms that are not checked here.
    """

    published: Published
    rank: Rank
    timestamp: Stamp | None
    cosignatures: tuple[str, ...]


@dataclass(frozen=True)
class Reach:
    """How many leaves of a log are stamped, and how many a quorum has cosigned; 0 for none."""

    stamped: int
    witnessed: int


_PUBLISHED = "SELECT size FROM checkpoints AS c WHERE {range} AND note IS NOT NULL"
_STAMPED = "SELECT size FROM checkpoint_timestamps AS c WHERE {range}"
_COSIGNED = (
    "SELECT size FROM checkpoint_cosignatures AS c WHERE {range} GROUP BY size HAVING {having}"
)
# From the first stamp on: cosignatures from before there was an authority are not read.
_BOTH = """
SELECT c.size FROM checkpoint_cosignatures AS c
  JOIN checkpoint_timestamps AS t ON t.generation = c.generation AND t.size = c.size
 WHERE {range}
   AND c.size >= (SELECT min(first.size) FROM checkpoint_timestamps AS first
                   WHERE first.generation = asked.generation AND first.size > asked.lower)
 GROUP BY c.size HAVING {having}
"""
# A limit on invalid rows: a table full of them must not keep a request busy.
_MOST_VERIFIED = 3
_NEWEST = """
SELECT size FROM {table} WHERE generation = %s AND size <= %s
 GROUP BY size ORDER BY size DESC LIMIT %s
"""
_RANGE = "c.generation = asked.generation AND c.size > asked.lower AND c.size <= asked.upper"
_FIRST = """
SELECT asked.lower, found.size
  FROM (SELECT %s::bigint AS generation, lower, upper
          FROM unnest(%s::bigint[], %s::bigint[]) AS ranges (lower, upper)) AS asked
 CROSS JOIN LATERAL ({candidates} ORDER BY size LIMIT 1) AS found
"""


class Chooser:
    """Chooses for the leaves of one log under one policy; good for one transaction.

    For many leaves call `prepare` first: then all are looked up together.
    """

    def __init__(
        self,
        session: Session,
        last: Published,
        policy: Policy | None,
        trusted: Sequence[Certificate] = (),
    ) -> None:
        """`last` is the log's last checkpoint: no evidence beyond it is seen.

        `trusted` are the roots of timestamp authorities: without any, a timestamp is given out, and
        vouches for nothing.
        """
        self._session = session
        self.last = last
        self._policy = policy
        self._trusted = trusted
        self._cache = CheckpointCache(session, last.generation, trusted)
        self._lines: dict[int, tuple[str, ...]] = {}
        self._searches: list[tuple[Rank, FirstHolding]] = []
        wanted = quorum.condition(policy)
        if wanted is not None:
            both, cosigned = (
                each.format(range=_RANGE, having=wanted.sql) for each in (_BOTH, _COSIGNED)
            )
            if trusted:
                self._search(Rank.BOTH, both, self._is_both, wanted.values)
            self._search(Rank.WITNESSED, cosigned, self._is_witnessed, wanted.values)
        stamped = Rank.TIMESTAMPED if trusted else Rank.LOG
        self._search(stamped, _STAMPED.format(range=_RANGE), self._cache.is_stamped)
        self._search(Rank.LOG, _PUBLISHED.format(range=_RANGE), self._is_published)

    def prepare(self, indexes: Iterable[int]) -> None:
        """Look for the best evidence of all these leaves; those that none covers are left out."""
        wanted = [index for index in indexes if index < self.last.checkpoint.size]
        for _, search in self._searches:
            search.prepare(wanted)
            wanted = [index for index in wanted if search.beyond(index) is None]

    def best(self, index: int, by: datetime | None = None) -> Evidence:
        """Return the best evidence for the leaf `index`.

        Raises `LogPending` if no checkpoint covers it, `LogDamaged` if none is left that holds.
        With `by` a checkpoint that others saw later ranks as the log alone.
        """
        late: Evidence | None = None
        for rank, search in self._searches:
            search.prepare([index])
            size = search.beyond(index)
            held = None if size is None else self._cache.get(size)
            if held is None:
                continue
            found = Evidence(held.published, rank, held.timestamp, self._presentable(held))
            if by is None or self._was_seen(held, by):
                return found
            late = late or replace(found, rank=Rank.LOG)
        if late is not None:
            return late
        if index < self.last.checkpoint.size:
            publication.intact(self.last)
        raise LogPending("No published checkpoint covers this leaf yet.")

    def vouchers(self, index: int) -> tuple[Voucher, ...]:
        """Return who vouches for a leaf that a checkpoint covers, each by some checkpoint."""
        found = Rank.LOG
        for rank, search in self._searches:
            if rank | found != found:
                search.prepare([index])
                if search.beyond(index) is not None:
                    found = Rank(found | rank)
        others = {Voucher.TIMESTAMPS: Rank.TIMESTAMPED, Voucher.WITNESSES: Rank.WITNESSED}
        return (Voucher.LOG, *(each for each, bit in others.items() if found & bit))

    def reach(self) -> Reach:
        """Return how far others vouch for the log, by the newest checkpoints that they saw.

        The search ends with the first that is valid: any caller may ask.
        """
        stamped = witnessed = 0
        if self._trusted:
            stamped = self._newest("checkpoint_timestamps", self._cache.is_stamped)
        if self._policy is not None:
            witnessed = self._newest("checkpoint_cosignatures", self._is_witnessed)
        return Reach(stamped, witnessed)

    def _newest(self, table: str, holds: Callable[[int], bool]) -> int:
        values = (self.last.generation.number, self.last.checkpoint.size, _MOST_VERIFIED)
        query = _NEWEST.format(table=table).encode()
        rows = cursor(self._session).execute(query, values).fetchall()
        return next((row[0] for row in rows if holds(row[0])), 0)

    def _search(
        self,
        rank: Rank,
        candidates: str,
        holds: Callable[[int], bool],
        values: tuple[object, ...] = (),
    ) -> None:
        query = _FIRST.format(candidates=candidates).encode()
        number = self.last.generation.number

        def find(ranges: Mapping[int, int]) -> dict[int, int]:
            asked = (number, list(ranges), list(ranges.values()), *values)
            found: dict[int, int] = dict(cursor(self._session).execute(query, asked).fetchall())
            self._cache.load(found.values())
            return found

        self._searches.append((rank, FirstHolding(self.last.checkpoint.size, find, holds)))

    def _is_published(self, size: int) -> bool:
        return self._cache.get(size) is not None

    def _was_seen(self, held: CachedCheckpoint, by: datetime) -> bool:
        """Whether an authority, or a quorum of witnesses, had seen a checkpoint by a moment."""
        if held.timestamp is not None and self._trusted and held.timestamp.gen_time <= by:
            return True
        lines = tuple(line for line in held.lines if _is_of(line, by))
        return _is_witnessed(replace(held, lines=lines), self._policy)

    def _presentable(self, held: CachedCheckpoint) -> tuple[str, ...]:
        """Return the lines of a checkpoint that may be given out, each checked once."""
        size = held.published.checkpoint.size
        if size not in self._lines:
            self._lines[size] = quorum.presentable(self._policy, held.published, held.lines)
        return self._lines[size]

    def _is_both(self, size: int) -> bool:
        return self._cache.is_stamped(size) and self._is_witnessed(size)

    def _is_witnessed(self, size: int) -> bool:
        held = self._cache.get(size)
        return held is not None and _is_witnessed(held, self._policy)


def rank_of(
    session: Session,
    number: int,
    size: int,
    policy: Policy | None,
    trusted: Sequence[Certificate] = (),
) -> Rank:
    """Return what vouches for one checkpoint of any log, also one that ended: held anew."""
    generation = generations.numbered(session, number)
    held = None if generation is None else CheckpointCache(session, generation, trusted).get(size)
    if held is None:
        return Rank.LOG
    stamped = Rank.TIMESTAMPED if trusted and held.timestamp is not None else Rank.LOG
    return Rank(stamped | (Rank.WITNESSED if _is_witnessed(held, policy) else Rank.LOG))


def _is_of(line: str, by: datetime) -> bool:
    """Whether a cosignature says that it was made by a moment."""
    try:
        seconds = int.from_bytes(Signature.parse(line).payload[:8], "big")
    except Malformed:
        return False
    return seconds <= by.timestamp()


def _is_witnessed(held: CachedCheckpoint, policy: Policy | None) -> bool:
    """Whether the stored lines that make a quorum are what witnesses signed."""
    if policy is None or policy.quorum == NONE:
        return False
    try:
        return quorum.is_met(policy, held.published.note, held.lines)
    except Malformed:
        return False
