"""Resealing: what older master keys sealed is sealed anew under the newest.

It walks each sealed column, a bounded number of rows in a transaction, and replaces a seal only if
it did not change meanwhile. So it may be killed, or run twice at once. Seals that cannot be opened
are counted and logged.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import structlog
from sqlalchemy.orm import Session

from app.clock import rfc3339
from app.core.audit import chain
from app.core.callers import OPERATOR
from app.core.master_keys import key_registry
from app.core.master_keys.sealed_columns import SEALED_COLUMNS, SealedColumn
from app.core.verification import alerts
from app.database import Database, cursor
from app.errors import AuditChainBroken, Conflict
from app.lib.crypto.sealing import ALIKE_IN_NONE, KEY_NAMED_IN, CannotOpen, MasterKeys

_log = structlog.get_logger(__name__)

# A transaction reads and writes this many rows, and this many bytes or one larger row.
MOST_ROWS = 500
MOST_BYTES = 4 * 1024 * 1024


@dataclass
class Resealed:
    """The numbers of seals that were replaced and that did not open, and whose they are."""

    resealed: int = 0
    unopened: int = 0
    tenants: set[UUID] = field(default_factory=set)


def reseal(database: Database, master_keys: MasterKeys, *, force: bool = False) -> Resealed:
    """Seal everything anew that another key than the newest of these sealed.

    A tenant's audit entry is written with the first of its seals. Raises `Conflict` while a process
    has another active key (unless `force`): it would go on to seal under that key, and may not even
    have this one.
    """
    newest = master_keys.ids[0]
    with database.across_tenants() as session:
        others = [] if force else key_registry.in_front(session, besides=newest)
    if others:
        seen = "; ".join(f"{key_id} at {rfc3339(at)}" for key_id, at in others)
        raise Conflict(
            f"another key than {newest} was in front of some process's MASTER_KEYS: {seen}. Give "
            f"every process {newest} in front, and ask again "
            f"{key_registry.LATELY.seconds // 60} minutes "
            "after the last of them was restarted, or say --force."
        )
    done = Resealed()
    for place in SEALED_COLUMNS:
        after: tuple[Any, ...] | None = ()
        while after is not None:
            with database.across_tenants() as session:
                after = _batch(session, master_keys, place, after, done)
    _log.info("resealed", key=newest, count=done.resealed, unopened=done.unopened)
    return done


def _batch(
    session: Session,
    master_keys: MasterKeys,
    place: SealedColumn,
    after: tuple[Any, ...],
    done: Resealed,
) -> tuple[Any, ...] | None:
    """Reseal the next rows of a column; return the key of the last, None at the end."""
    rows = _read(session, master_keys.header, place, after)
    changes = _sealed_anew(master_keys, place, rows)
    done.unopened += len(rows) - len(changes)
    if changes:
        cur = cursor(session)
        this_row = " AND ".join(f"t.{name} = %s" for name in place.key)
        cur.executemany(
            f"UPDATE {place.table} AS t SET {place.column} = %b"
            f" WHERE {this_row} AND substr(t.{place.column}, 1, {ALIKE_IN_NONE}) = %s".encode(),
            changes,
        )
        done.resealed += cur.rowcount
        if place.has_tenant and cur.rowcount:
            # Last, as it locks the chains' heads until the commit.
            _audit(session, master_keys.ids[0], {change[1] for change in changes} - done.tenants)
            done.tenants |= {change[1] for change in changes}
    return rows[-1][: len(place.key)] if rows else None


def _read(
    session: Session, header: bytes, place: SealedColumn, after: Sequence[Any]
) -> list[tuple[Any, ...]]:
    """Return the next rows that another key sealed: primary key, arguments of the identity, bytes.

    A byte string is read from the disk only where it is returned: its length stands in the row.
    """
    behind = f"AND ({place.keys}) > ({', '.join(['%s'] * len(after))})" if after else ""
    size = f"octet_length(t.{place.column})"
    query = f"""
    SELECT {place.keys}, {place.named_by}, t.{place.column}
      FROM (SELECT t.*, sum({size}) OVER (ORDER BY {place.keys}) - {size} AS bytes_before
              FROM (SELECT t.* FROM {place.table} AS t
                     WHERE t.{place.column} IS NOT NULL
                       AND substr(t.{place.column}, 1, {KEY_NAMED_IN}) <> %s {behind}
                     ORDER BY {place.keys} LIMIT {MOST_ROWS}) AS t) AS t
     WHERE t.bytes_before < {MOST_BYTES} ORDER BY {place.keys}
    """
    return cursor(session).execute(query.encode(), [header, *after], binary=True).fetchall()


def _sealed_anew(
    master_keys: MasterKeys, place: SealedColumn, rows: Iterable[tuple[Any, ...]]
) -> list[tuple[Any, ...]]:
    """Return for each row that opens: the new seal, its primary key, the old seal's beginning."""
    changes, unopened = [], []
    for row in rows:
        key, sealed_for, sealed = row[: len(place.key)], row[len(place.key) : -1], row[-1]
        try:
            fresh = master_keys.reseal(sealed, place.identity(*sealed_for))
        except CannotOpen as error:
            named = [each.hex() if isinstance(each, bytes) else str(each) for each in key]
            unopened.append({"key": named, "why": str(error)})
        else:
            changes.append((fresh, *key, sealed[:ALIKE_IN_NONE]))
    if unopened:
        # One line a batch: if an old key is missing there may be millions.
        _log.error("unsealing_failed", place=str(place), count=len(unopened), first=unopened[0])
    return changes


def _audit(session: Session, newest: str, tenants: Iterable[UUID]) -> None:
    for tenant in sorted(tenants):
        try:
            target = ("master_key", newest)
            chain.append(session, tenant, OPERATOR, "master_key.rotate", target=target)
        except AuditChainBroken as error:
            # A broken chain must not keep an old key in use: resealing goes on.
            alerts.report_break_in(session, tenant, error)
