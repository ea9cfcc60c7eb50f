"""Chooses the best evidence for a leaf: one checkpoint, with its proof, timestamp and cosignatures.

A quorum with a timestamp ranks before a quorum, then a timestamp, then the log alone; of equals the
earliest. Stored rows are verified before they count.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from enum import IntEnum, StrEnum

from cryptography.x509 import Certificate
from sqlalchemy.orm import Session

from app.core.anchoring import quorum
from app.core.log import generations
from app.core.log.generations import Generation
from app.core.log.publication import Published
from app.database import cursor
from app.errors import LogPending
from app.evidence import timestamps
from app.evidence.timestamps import NotStamped, Stamp
from app.ledger.notes import Checkpoint, Malformed, Signature
from app.ledger.policy import NONE, Policy


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


_CHECKPOINTS = """
SELECT c.size, c.root, c.note, t.response, t.tsa_chain,
       ARRAY(SELECT line FROM checkpoint_cosignatures AS s
              WHERE s.generation = c.generation AND s.size = c.size
              ORDER BY created_at, name, key_hash)
  FROM checkpoints AS c
  LEFT JOIN checkpoint_timestamps AS t ON t.generation = c.generation AND t.size = c.size
 WHERE c.generation = %s AND c.size = ANY (%s) AND c.note IS NOT NULL
"""


@dataclass(frozen=True)
class CachedCheckpoint:
    """A checkpoint, its timestamp if there is one that holds, and the lines stored for it."""

    published: Published
    timestamp: Stamp | None
    lines: tuple[str, ...]


class CheckpointCache:
    """The checkpoints of one log; good for one transaction."""

    def __init__(
        self, session: Session, generation: Generation, trusted: Sequence[Certificate]
    ) -> None:
        """`trusted` are the roots of timestamp authorities; without any, a timestamp's own do.

        Those show only that it belongs to its checkpoint.
        """
        self._session = session
        self._generation = generation
        self._trusted = trusted
        self._held: dict[int, CachedCheckpoint | None] = {}

    def load(self, sizes: Iterable[int]) -> None:
        """Read the checkpoints of these sizes that were not read yet."""
        wanted = sorted(set(sizes) - self._held.keys())
        if not wanted:
            return
        self._held.update(dict.fromkeys(wanted))
        values = (self._generation.number, wanted)
        for size, root, note, response, chain, lines in cursor(self._session).execute(
            _CHECKPOINTS, values, binary=True
        ):
            checkpoint = Checkpoint(self._generation.origin, size, bytes(root))
            published = Published(self._generation, checkpoint, bytes(note))
            if not published.is_intact:
                continue
            stamp = None if response is None else self._stamp(bytes(response), chain, bytes(note))
            self._held[size] = CachedCheckpoint(published, stamp, tuple(lines))

    def get(self, size: int) -> CachedCheckpoint | None:
        """Return what is held of a size; None if no checkpoint of it was published, or holds."""
        self.load([size])
        return self._held[size]

    def is_stamped(self, size: int) -> bool:
        """Whether a checkpoint of this size was published, and has a timestamp that holds."""
        held = self.get(size)
        return held is not None and held.timestamp is not None

    def _stamp(self, response: bytes, chain: str, note: bytes) -> Stamp | None:
        try:
            own = timestamps.read_certificates(chain.encode())
            if self._trusted and any(
                each.subject == each.issuer and each not in self._trusted for each in own
            ):
                return None
            found = timestamps.verify(response, note, self._trusted or own)
        except (NotStamped, ValueError):
            return None
        return replace(found, chain=chain)


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


_MOST_REFUSED = 64


class _Search:
    """The first checkpoint beyond a leaf that holds, of one rank; good for one transaction."""

    def __init__(
        self,
        session: Session,
        cache: CheckpointCache,
        last: Published,
        rank: Rank,
        candidates: str,
        holds: Callable[[int], bool],
        values: tuple[object, ...] = (),
    ) -> None:
        """`candidates` selects sizes in a {range}; each counts only if it `holds`."""
        self.rank = rank
        self._session = session
        self._cache = cache
        self._last = last
        self._query = _FIRST.format(candidates=candidates.format(range=_RANGE)).encode()
        self._holds = holds
        self._values = values
        self._found: dict[int, int | None] = {}

    def prepare(self, indexes: Iterable[int]) -> None:
        """Find the answers for these leaves of the log, by one query for all of them."""
        new = set(indexes) - self._found.keys()
        if not new:
            return
        points = sorted(new | self._found.keys())
        uppers = dict(zip(points, [*points[1:], self._last.checkpoint.size], strict=True))
        candidates = self._find({index: uppers[index] for index in new})
        for index in sorted(new, reverse=True):
            first = self._first(candidates.get(index), uppers[index])
            # A checkpoint beyond the next index is beyond this one as well.
            self._found[index] = self._found.get(uppers[index]) if first is None else first

    def beyond(self, index: int) -> int | None:
        """Return the size for a leaf that was prepared; None if nothing holds."""
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

    def _find(self, ranges: Mapping[int, int]) -> dict[int, int]:
        """Return the first candidate in each range: beyond the key, up to and with the value."""
        number = self._last.generation.number
        asked = (number, list(ranges), list(ranges.values()), *self._values)
        found: dict[int, int] = dict(cursor(self._session).execute(self._query, asked).fetchall())
        self._cache.load(found.values())
        return found


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
        searches: list[tuple[Rank, str, Callable[[int], bool], tuple[object, ...]]] = []
        wanted = quorum.condition(policy)
        if wanted is not None:
            both, cosigned = (
                each.format(range="{range}", having=wanted.sql) for each in (_BOTH, _COSIGNED)
            )
            if trusted:
                searches.append((Rank.BOTH, both, self._is_both, wanted.values))
            searches.append((Rank.WITNESSED, cosigned, self._is_witnessed, wanted.values))
        searches.append(
            (Rank.TIMESTAMPED if trusted else Rank.LOG, _STAMPED, self._cache.is_stamped, ())
        )
        searches.append((Rank.LOG, _PUBLISHED, self._is_published, ()))
        self._searches = [_Search(session, self._cache, last, *each) for each in searches]

    def prepare(self, indexes: Iterable[int]) -> None:
        """Look for the best evidence of all these leaves; those that none covers are left out."""
        wanted = [index for index in indexes if index < self.last.checkpoint.size]
        for search in self._searches:
            search.prepare(wanted)
            wanted = [index for index in wanted if search.beyond(index) is None]

    def best(self, index: int, by: datetime | None = None) -> Evidence:
        """Return the best evidence for the leaf `index`.

        Raises `LogPending` if no checkpoint covers it, `LogDamaged` if none is left that holds.
        With `by` a checkpoint that others saw later ranks as the log alone.
        """
        late: Evidence | None = None
        for search in self._searches:
            search.prepare([index])
            size = search.beyond(index)
            held = None if size is None else self._cache.get(size)
            if size is None or held is None:
                continue
            if size not in self._lines:
                lines = quorum.presentable(self._policy, held.published, held.lines)
                self._lines[size] = lines
            found = Evidence(held.published, search.rank, held.timestamp, self._lines[size])
            if by is None or self._was_seen(held, by):
                return found
            late = late or replace(found, rank=Rank.LOG)
        if late is not None:
            return late
        if index < self.last.checkpoint.size:
            self.last.intact()
        raise LogPending("No published checkpoint covers this leaf yet.")

    def vouchers(self, index: int) -> tuple[Voucher, ...]:
        """Return who vouches for a leaf that a checkpoint covers, each by some checkpoint."""
        found = Rank.LOG
        for search in self._searches:
            if search.rank | found != found:
                search.prepare([index])
                if search.beyond(index) is not None:
                    found = Rank(found | search.rank)
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

    def _was_seen(self, held: CachedCheckpoint, by: datetime) -> bool:
        """Whether an authority, or a quorum of witnesses, had seen a checkpoint by a moment."""
        if held.timestamp is not None and self._trusted and held.timestamp.gen_time <= by:
            return True
        lines = []
        for line in held.lines:
            with suppress(Malformed):
                # A cosignature says when it was made.
                seconds = int.from_bytes(Signature.parse(line).payload[:8], "big")
                lines += [line] if seconds <= by.timestamp() else []
        return _is_witnessed(replace(held, lines=tuple(lines)), self._policy)

    def _is_published(self, size: int) -> bool:
        return self._cache.get(size) is not None

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


def _is_witnessed(held: CachedCheckpoint, policy: Policy | None) -> bool:
    """Whether the stored lines that make a quorum are what witnesses signed."""
    if policy is None or policy.quorum == NONE:
        return False
    try:
        return quorum.is_met(policy, held.published.note, held.lines)
    except Malformed:
        return False
