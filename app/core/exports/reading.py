"""Reads the records of a time, and a stretch of the log with what of it is a tenant's own.

Leaves name no tenant, and no index leads from a leaf to its record. But a leaf's id holds the time
at which its record was signed, to within the seconds of a transaction: records of that time are
compared by their leaves' hashes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from sqlalchemy.orm import Session

from app import ids
from app.clock import rfc3339
from app.core.log import proofs, publication
from app.core.log.generations import Generation
from app.core.log.publication import Published
from app.core.records import retention
from app.database import cursor
from app.errors import LogDamaged
from app.evidence.period_export import Draft, Listed
from app.ledger import leaves, merkle

A_PAGE = 5_000
_SMALLEST = UUID(int=0)
_SESSION = b'{"statement_sha256":"'

_PERIOD = """
SELECT created_at, id, bundle_sha256 FROM records
 WHERE tenant_id = %(tenant)s AND created_at >= %(since)s AND created_at < %(until)s
   AND (created_at, id) > (%(at)s, %(id)s)
   AND (%(agent)s::uuid IS NULL OR agent_id = %(agent)s)
 ORDER BY created_at, id LIMIT %(most)s
"""
_RECORDS = f"""
SELECT r.created_at, r.id, r.session_id, r.agent_id, r.kind, r.occurred_at, r.bundle_sha256,
       b.record_id IS NOT NULL AND {retention.READABLE}
  FROM records AS r
  JOIN tenants AS t ON t.id = r.tenant_id
  LEFT JOIN bundles AS b ON b.tenant_id = r.tenant_id AND b.record_id = r.id
 WHERE r.tenant_id = %(tenant)s AND r.created_at >= %(since)s AND r.created_at <= %(until)s
   AND (r.created_at, r.id) > (%(at)s, %(id)s)
 ORDER BY r.created_at, r.id LIMIT %(most)s
"""
_LEAVES = """
SELECT id, leaf_hash, data FROM log_leaves
 WHERE generation = %s AND leaf_index >= %s AND leaf_index < %s ORDER BY leaf_index
"""
_STATEMENTS = """
SELECT s.sha256, s.session_id, s.body FROM session_statements AS s
  JOIN sessions AS o ON o.tenant_id = s.tenant_id AND o.id = s.session_id
 WHERE s.tenant_id = %(tenant)s AND s.sha256 = ANY (%(digests)b)
   AND (%(agent)s::uuid IS NULL OR o.agent_id = %(agent)s)
"""
_PUBLISHED = """
SELECT size, published_at FROM checkpoints
 WHERE generation = %s AND size > %s AND note IS NOT NULL
   AND size <= (SELECT min(size) FROM checkpoints
                 WHERE generation = %s AND size >= %s AND note IS NOT NULL)
 ORDER BY size
"""


class Period(NamedTuple):
    """The records of a tenant, or of one of its agents, created from `since` up to `until`."""

    tenant_id: UUID
    since: datetime
    until: datetime
    agent_id: UUID | None

    def has(self, created_at: datetime, agent_id: UUID) -> bool:
        """Say whether a record of the tenant belongs to it."""
        return self.since <= created_at < self.until and self.agent_id in (None, agent_id)


class Place(NamedTuple):
    """A record by its moment and id, in the order in which the period is counted."""

    at: datetime
    id: UUID


class Page(NamedTuple):
    """Some records of a period: the last one, and their leaves' places in the log.

    Without places, one of them waits for the log.
    """

    last: Place | None
    places: Sequence[int] | None


def count(session: Session, last: Published, period: Period, after: Place | None) -> Page:
    """Find the next records of a period. Raises `LogDamaged` for one that has no leaf."""
    start = after or Place(period.since, _SMALLEST)
    wanted = {
        "tenant": period.tenant_id,
        "since": period.since,
        "until": period.until,
        "agent": period.agent_id,
        "at": start.at,
        "id": start.id,
        "most": A_PAGE,
    }
    rows = cursor(session).execute(_PERIOD, wanted, binary=True).fetchall()
    if not rows:
        return Page(after, [])
    by_hash = {hash_of(row[2]): row[1] for row in rows}
    found = proofs.leaves(session, last, list(by_hash))
    missing = [record_id for each, record_id in by_hash.items() if each not in found]
    if missing:
        raise LogDamaged(
            f"The log has no leaf of {ids.text('rec', missing[0])}. {publication.MENDED_BY}"
        )
    places = [each.index for each in found.values() if each is not None]
    return Page(Place(*rows[-1][:2]), places if len(places) == len(found) else None)


def hash_of(bundle_sha256: bytes) -> bytes:
    """Return the hash of a record's leaf."""
    return merkle.leaf_hash(leaves.record(bytes(bundle_sha256)))


@dataclass(frozen=True)
class Stretch:
    """Leaves of the log from `start` on, with what is the tenant's own, by their indexes."""

    start: int
    hashes: Sequence[bytes]
    data: Sequence[bytes]
    listed: Mapping[int, Listed]
    outside: Mapping[int, Mapping[str, str]]
    sessions: Mapping[int, tuple[str, bytes]]


def stretch(
    session: Session,
    generation: Generation,
    period: Period,
    bounds: tuple[int, int],
    slack: timedelta | None,
) -> Stretch:
    """Read the leaves between two indexes of a log.

    `slack` is how far in time a record may lie from the leaves around its own; None: anywhere in
    the period. Raises `LogDamaged` where a leaf's row is missing.
    """
    start, end = bounds
    rows = cursor(session).execute(_LEAVES, (generation.number, start, end), binary=True).fetchall()
    if len(rows) != end - start:
        raise LogDamaged(f"A leaf's row is missing in {start} to {end}. {publication.MENDED_BY}")
    moments = [period.since, period.until]
    if slack is not None:
        times = [ids.made_at(row[0]) for row in rows]
        moments = [min(times) - slack, max(times) + timedelta(milliseconds=1) + slack]
    wanted = {bytes(row[1]): start + place for place, row in enumerate(rows)}
    logged = _logged(session, generation, start, end)
    listed: dict[int, Listed] = {}
    outside: dict[int, Mapping[str, str]] = {}
    for created_at, record_id, session_id, agent_id, kind, occurred_at, digest, kept in _records(
        session, period.tenant_id, moments
    ):
        index = wanted.get(hash_of(digest))
        if index is None:
            continue
        named, agent = ids.text("rec", record_id), ids.text("agt", agent_id)
        if not period.has(created_at, agent_id):
            outside[index] = {"id": named, "agent_id": agent, "created_at": rfc3339(created_at)}
            continue
        listed[index] = Listed(
            id=named,
            session_id=ids.text("ses", session_id),
            agent_id=agent,
            kind=kind,
            created_at=rfc3339(created_at),
            occurred_at=rfc3339(occurred_at),
            bundle_sha256=digest.hex(),
            content="stored" if kept else "expired",
            logged_at=logged[index - start],
        )
    data = [bytes(row[2]) for row in rows]
    sessions = _sessions(session, period, start, data)
    return Stretch(start, [bytes(row[1]) for row in rows], data, listed, outside, sessions)


def _records(
    session: Session, tenant_id: UUID, moments: Sequence[datetime]
) -> Iterator[tuple[datetime, UUID, UUID, UUID, str, datetime, bytes, bool]]:
    """Yield a tenant's records of a time, a page of them in memory."""
    since, until = moments
    at, record_id = since, _SMALLEST
    while True:
        wanted = {"tenant": tenant_id, "since": since, "until": until}
        place = {"at": at, "id": record_id, "most": A_PAGE}
        rows = cursor(session).execute(_RECORDS, wanted | place, binary=True).fetchall()
        yield from rows
        if len(rows) < A_PAGE:
            return
        at, record_id = rows[-1][:2]


def _sessions(
    session: Session, period: Period, start: int, data: Sequence[bytes]
) -> dict[int, tuple[str, bytes]]:
    """Return the statements among the leaves that are of the period's tenant or agent."""
    begin = len(_SESSION)
    wanted = {
        bytes.fromhex(each[begin : begin + 64].decode()): start + place
        for place, each in enumerate(data)
        if each.startswith(_SESSION)
    }
    if not wanted:
        return {}
    asked = {"tenant": period.tenant_id, "digests": list(wanted), "agent": period.agent_id}
    rows = cursor(session).execute(_STATEMENTS, asked, binary=True).fetchall()
    return {
        wanted[bytes(digest)]: (ids.text("ses", session_id), bytes(body))
        for digest, session_id, body in rows
    }


def _logged(session: Session, generation: Generation, start: int, end: int) -> list[str]:
    """Return when each leaf was first covered by a published checkpoint."""
    place = (generation.number, start, generation.number, end)
    found: list[str] = []
    for size, published_at in cursor(session).execute(_PUBLISHED, place).fetchall():
        found += [rfc3339(published_at)] * (min(size, end) - start - len(found))
    return found


def gaps(begin: int, found: Stretch, end: int | None) -> dict[int, int]:
    """Return the ends of the gaps between the tenant's own leaves, the last up to `end`."""
    own = sorted({*found.listed, *found.sessions})
    edges = [begin, *(each + 1 for each in own)]
    ends = own if end is None else [*own, end]
    return {start: stop for start, stop in zip(edges, ends, strict=False) if start < stop}


def write_lines(
    draft: Draft,
    found: Stretch,
    ends: Mapping[int, int] | None,
    read: merkle.ReadHash,
) -> list[bytes]:
    """Write the lines of a stretch: other leaves as `ends` says, in full without any.

    A gap that does not end here is left to what follows.
    """
    lines = []
    while draft.at < found.start + len(found.hashes):
        index = draft.at
        place = index - found.start
        if index in found.listed:
            lines.append(draft.record(found.listed[index], found.hashes[place]))
        elif index in found.sessions:
            lines.append(draft.session(*found.sessions[index], found.hashes[place]))
        elif ends is None:
            lines.append(draft.other(found.data[place], found.outside.get(index)))
        elif index in ends:
            lines.append(draft.fold(ends[index], read))
        else:
            break
    return lines
