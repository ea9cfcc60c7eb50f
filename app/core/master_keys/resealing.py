"""Key rotation: a durable job seals everything anew under the newest master key.

Each step walks a table's primary key, a bounded number of rows in one transaction, and replaces a
seal only if it did not change meanwhile. So it may be killed or run twice. Seals that cannot be
opened are counted and logged.
"""

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import structlog
from psycopg.rows import scalar_row
from sqlalchemy.orm import Session

from app import ids
from app.clock import rfc3339
from app.core.audit import chain
from app.core.callers import OPERATOR
from app.core.jobs import job_queue, job_rows
from app.core.jobs.steps import Failed, Step
from app.core.master_keys import key_registry
from app.core.master_keys.sealed_columns import OF_A_TENANT, OF_THE_SERVICE, SealedColumn
from app.core.verification import alerts
from app.database import after_commit, cursor
from app.errors import AuditChainBroken, Conflict
from app.lib.crypto.sealing import ALIKE_IN_NONE, KEY_NAMED_IN, CannotOpen, MasterKeys
from app.models import Job

_log = structlog.get_logger(__name__)

KIND = "reseal"
# A batch reads this many rows, and reseals this many bytes, or one larger row.
MOST_ROWS = 500
MOST_BYTES = 4 * 1024 * 1024
# Batches in one transaction, which takes some tenths of a second.
MOST_PIECES = 20

_BEFORE_ALL = UUID(int=0)
_NAMED = {str(place): place for place in (*OF_THE_SERVICE, *OF_A_TENANT)}
_FOLLOWING = {
    place: following
    for places in (OF_THE_SERVICE, OF_A_TENANT)
    for place, following in itertools.pairwise(places)
}


@dataclass(frozen=True)
class _At:
    """The position of a run: after the row with the key `after`, in one column of a tenant.

    Without a tenant the column is the service's own. `audited` says whether the tenant's audit
    chain has the entry.
    """

    tenant: UUID | None
    place: SealedColumn
    after: tuple[str, ...] = ()
    audited: bool = False

    @classmethod
    def read(cls, text: str | None) -> "_At":
        """Parse a job's cursor."""
        if text is None:
            return cls(None, OF_THE_SERVICE[0])
        tenant, name, after, audited = json.loads(text)
        return cls(tenant and UUID(hex=tenant), _NAMED[name], tuple(after), audited)

    def __str__(self) -> str:
        tenant = self.tenant and self.tenant.hex
        return json.dumps([tenant, str(self.place), self.after, self.audited])


@dataclass(frozen=True)
class _Piece:
    """The result of one batch; `last` is the key it ended at, None at the end of the column."""

    resealed: int
    unopened: int
    size: int
    last: tuple[str, ...] | None


def begin(session: Session, master_keys: MasterKeys, *, force: bool) -> Job:
    """Enqueue the job that seals everything under the newest of these keys; return it.

    Raises `Conflict` while a process has another active key (unless `force`): it would go on to
    seal under that key, and may not even have this one.
    """
    newest = master_keys.ids[0]
    others = [] if force else key_registry.in_front(session, besides=newest)
    if others:
        seen = "; ".join(f"{key_id} at {rfc3339(at)}" for key_id, at in others)
        raise Conflict(
            f"another key than {newest} was in front of some process's MASTER_KEYS: {seen}. Give "
            f"every process {newest} in front, and ask again "
            f"{key_registry.LATELY.seconds // 60} minutes "
            "after the last of them was restarted, or say --force."
        )
    job = job_queue.recur(
        session, kind=KIND, dedupe_key="all", args={"key": newest}, after_failure=True
    )
    if job_rows.args_of(job)["key"] != newest:
        raise Conflict(f"{ids.text('job', job.id)} is at work on another key; wait for its end.")
    return job


def step(master_keys: MasterKeys, session: Session, _tenant_id: UUID, job: Job) -> Step | Failed:
    """Reseal some batches, in a session that sees every tenant.

    The first change of a tenant's seals and its audit entry are one transaction, unless the chain
    is broken.
    """
    newest = job_rows.args_of(job)["key"]
    if master_keys.ids[0] != newest:
        return Failed(f"This worker's MASTER_KEYS does not begin with the key {newest}.")
    progress: dict[str, Any] = {"resealed": 0, "unopened": 0, "tenants": 0}
    progress |= json.loads(job.progress or "{}")
    at: _At | None = _At.read(job.cursor)
    size = 0
    for _ in range(MOST_PIECES):
        if at is None or size >= MOST_BYTES:
            break
        done = _piece(session, master_keys, at)
        size += done.size
        progress["resealed"] += done.resealed
        progress["unopened"] += done.unopened
        tenant = at.tenant
        audits = tenant is not None and done.resealed > 0 and not at.audited
        at = _next(session, replace(at, audited=at.audited or audits), done.last)
        progress["tenants"] += tenant is not None and (at is None or at.tenant != tenant)
        if tenant is not None and audits:
            # Last in a step, as it locks the chain's head until the commit.
            _audit(session, tenant, newest)
            break
    if at is None:
        after_commit(session, lambda: _log.info("resealed", key=newest, **progress))
    return Step(None if at is None else str(at), progress)


def _audit(session: Session, tenant: UUID, newest: str) -> None:
    try:
        target = ("master_key", newest)
        chain.append(session, tenant, OPERATOR, "master_key.rotate", target=target)
    except AuditChainBroken as error:
        # A broken chain must not keep an old key in use: resealing goes on.
        alerts.report_break_in(session, tenant, error)


def _piece(session: Session, master_keys: MasterKeys, at: _At) -> _Piece:
    """Read the next rows of a column, and reseal those that another key sealed."""
    place = at.place
    where, values = _behind(at)
    read = cursor(session).execute(
        f"SELECT {place.keys}, substr(t.{place.column}, 1, {KEY_NAMED_IN}),"
        f"       octet_length(t.{place.column})"
        f"  FROM {place.table} AS t WHERE {where} ORDER BY {place.keys} LIMIT {MOST_ROWS}".encode(),
        values,
    )
    found = read.fetchall()
    taken, size = _of_bounded_size(found, master_keys.header)
    whole = taken == len(found) < MOST_ROWS
    last = _texts(found[taken - 1][: len(place.key)]) if taken else ()
    if not size:
        return _Piece(0, 0, 0, None if whole else last)
    until = f"{where} AND ({place.keys}) <= ({_marks(last)})"
    old = _read(session, place, until, [*values, *last], master_keys.header)
    changes = _sealed_anew(master_keys, place, old)
    return _Piece(
        _write(session, place, changes), len(old) - len(changes), size, None if whole else last
    )


def _behind(at: _At) -> tuple[str, list[Any]]:
    """Return the condition of a column's remaining rows, with its values."""
    place = at.place
    conditions, values = [f"t.{place.column} IS NOT NULL"], list[Any]()
    if at.tenant is not None:
        conditions.append(f"t.{place.key[0]} = %s")
        values.append(at.tenant)
    if at.after:
        conditions.append(f"({place.keys}) > ({_marks(at.after)})")
        values += at.after
    return " AND ".join(conditions), values


def _of_bounded_size(found: Sequence[tuple[Any, ...]], header: bytes) -> tuple[int, int]:
    """Return how many of the rows to take, and how many of their bytes to reseal."""
    total = 0
    for place, (*_, begins, size) in enumerate(found):
        if begins != header:
            if total and total + size > MOST_BYTES:
                return place, total
            total += size
    return len(found), total


def _read(
    session: Session, place: SealedColumn, where: str, values: Sequence[Any], header: bytes
) -> list[tuple[Any, ...]]:
    """Return the rows that another key sealed: primary key, arguments of the identity, bytes."""
    query = (
        f"SELECT {place.keys}, {place.named_by}, t.{place.column} FROM {place.table} AS t"
        f" WHERE {where} AND substr(t.{place.column}, 1, {KEY_NAMED_IN}) <> %s"
    )
    return cursor(session).execute(query.encode(), [*values, header], binary=True).fetchall()


def _sealed_anew(
    master_keys: MasterKeys, place: SealedColumn, rows: Sequence[tuple[Any, ...]]
) -> list[tuple[Any, ...]]:
    """Return for each row that opens: the new seal, its primary key, the old seal's beginning."""
    changes = []
    unopened = []
    for row in rows:
        key, sealed_for, sealed = row[: len(place.key)], row[len(place.key) : -1], row[-1]
        try:
            fresh = master_keys.reseal(sealed, place.identity(*sealed_for))
        except CannotOpen as error:
            unopened.append({"key": _texts(key), "why": str(error)})
        else:
            changes.append((fresh, *key, sealed[:ALIKE_IN_NONE]))
    if unopened:
        # One line a batch: if an old key is missing there may be millions.
        _log.error("unsealing_failed", place=str(place), count=len(unopened), first=unopened[0])
    return changes


def _write(session: Session, place: SealedColumn, changes: Sequence[tuple[Any, ...]]) -> int:
    """Store new seals where the old ones are unchanged; return how many."""
    if not changes:
        return 0
    cur = cursor(session)
    this_row = " AND ".join(f"t.{name} = %s" for name in place.key)
    cur.executemany(
        f"UPDATE {place.table} AS t SET {place.column} = %b"
        f" WHERE {this_row} AND substr(t.{place.column}, 1, {ALIKE_IN_NONE}) = %s".encode(),
        changes,
    )
    return cur.rowcount


_NEXT_TENANT = "SELECT id FROM tenants WHERE id > %s ORDER BY id LIMIT 1"


def _next(session: Session, at: _At, last: tuple[str, ...] | None) -> _At | None:
    """Return the next position: in this column, the next one, the next tenant; None at the end."""
    if last is not None:
        return replace(at, after=last)
    following = _FOLLOWING.get(at.place)
    if following is not None:
        return replace(at, place=following, after=())
    values = (at.tenant or _BEFORE_ALL,)
    tenant = cursor(session, scalar_row).execute(_NEXT_TENANT, values).fetchone()
    return tenant and _At(tenant, OF_A_TENANT[0])


def _marks(values: Sequence[Any]) -> str:
    return ", ".join(["%s"] * len(values))


def _texts(key: Sequence[Any]) -> tuple[str, ...]:
    """Write a key as PostgreSQL reads its columns, of any type."""
    return tuple(rf"\x{each.hex()}" if isinstance(each, bytes) else str(each) for each in key)
