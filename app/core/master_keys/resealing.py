"""Resealing: what older master keys sealed is sealed anew under the newest.

It walks each sealed column, a bounded number of rows in a transaction, and replaces a seal only if
it did not change meanwhile. So it may be killed, or run twice at once. What lies in the object
store becomes another object there. Seals that cannot be opened are counted and logged.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, NamedTuple
from uuid import UUID

import structlog
from sqlalchemy.orm import Session

from app.clock import rfc3339
from app.core import idempotency, signing_keys, word_index
from app.core.audit import archive, chain
from app.core.blobs import rows as rows_of_blobs
from app.core.blobs.store import PLACES, Blob, BlobStore, new_id
from app.core.callers import OPERATOR
from app.core.exports import parts
from app.core.log import generations
from app.core.master_keys import key_registry
from app.core.packs import store
from app.core.records import bundles
from app.core.verification import alerts
from app.core.webhooks import webhook_secrets
from app.database import Database, cursor, database_now
from app.errors import AuditChainBroken, Conflict, Unavailable
from app.lib.crypto.sealing import ALIKE_IN_NONE, KEY_NAMED_IN, CannotOpen, MasterKeys, key_of

_log = structlog.get_logger(__name__)

# A transaction reads and writes this many rows, and this many bytes or one larger row.
MOST_ROWS = 500
MOST_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True)
class SealedColumn:
    """A column of sealed bytes, with its table's primary key.

    `identity` makes of a row what its bytes are sealed for, from the SQL expressions `sealed_for`
    over the table as `t`; by default from the key, which begins with the tenant if it has one.
    """

    table: str
    column: str
    key: tuple[str, ...]
    identity: Callable[..., str]
    sealed_for: tuple[str, ...] = ()
    has_tenant: bool = True

    def __str__(self) -> str:
        return f"{self.table}.{self.column}"

    @property
    def in_objects(self) -> bool:
        """Whether the bytes may lie in the object store."""
        return self.table in PLACES

    @cached_property
    def begins(self) -> str:
        """The beginning of the seal, which names its key, in SQL."""
        of_bytes = f"substr(t.{self.column}, 1, {KEY_NAMED_IN})"
        if not self.in_objects:
            return of_bytes
        return f"coalesce({of_bytes}, '\\x01' || substr(uuid_send(t.blob), 13))"

    @property
    def next_rows(self) -> str:
        """The query for the next rows that another key sealed, beyond those of a {behind}.

        Of each its key, the arguments of `identity`, the bytes and the object. A byte string is
        read from the disk only where it is returned: its length stands in the row.
        """
        keys, column = ", ".join(f"t.{name}" for name in self.key), f"t.{self.column}"
        size, blob = f"octet_length({column})", "NULL::uuid"
        if self.in_objects:
            size = PLACES[self.table].size
            blob = f"CASE WHEN {column} IS NULL THEN t.blob END"
        return f"""
        SELECT {keys}, {", ".join(self.sealed_for) or keys}, {column}, {blob}
          FROM (SELECT t.*, sum({size}) OVER (ORDER BY {keys}) - {size} AS bytes_before
                  FROM (SELECT t.* FROM {self.table} AS t
                         WHERE {self.begins} <> %s {{behind}}
                         ORDER BY {keys} LIMIT {MOST_ROWS}) AS t) AS t
         WHERE t.bytes_before < {MOST_BYTES} ORDER BY {keys}
        """


_WHOSE_PACK = """
(SELECT coalesce(p.record_id, p.session_id) FROM evidence_packs AS p
  WHERE p.tenant_id = t.tenant_id AND p.id = t.pack_id)
"""

SEALED_COLUMNS = (
    # Those of no tenant come first, in the order in which `log succeed` locks them.
    SealedColumn(
        "log_generations", "appointment", ("generation",), generations.identity, has_tenant=False
    ),
    SealedColumn(
        "signing_keys", "sealed_private_key", ("key_id",), signing_keys.identity, has_tenant=False
    ),
    SealedColumn("sealed_notes", "sealed", ("name",), alerts.note_identity, has_tenant=False),
    SealedColumn("tenants", "chain_seal", ("id",), chain.salt_identity),
    SealedColumn("tenants", "sealed_search_key", ("id",), word_index.identity),
    SealedColumn(
        "webhooks", "sealed_secrets", ("tenant_id", "id"), webhook_secrets.secrets_identity
    ),
    SealedColumn("webhooks", "sealed_target", ("tenant_id", "id"), webhook_secrets.target_identity),
    SealedColumn(
        "idempotency_keys",
        "sealed_answer",
        ("tenant_id", "api_key_id", "scope"),
        idempotency.identity,
    ),
    SealedColumn("bundles", "bytes", ("tenant_id", "record_id"), bundles.identity),
    SealedColumn("audit_segments", "bytes", ("tenant_id", "id"), archive.identity),
    SealedColumn("export_parts", "bytes", ("tenant_id", "export_id", "starts"), parts.identity),
    SealedColumn(
        "evidence_pack_parts",
        "bytes",
        ("tenant_id", "pack_id", "starts"),
        store.identity,
        sealed_for=("t.tenant_id", _WHOSE_PACK, "t.pack_id", "t.starts"),
    ),
)


@dataclass
class Resealed:
    """The numbers of seals that were replaced and that did not open, and whose they are."""

    resealed: int = 0
    unopened: int = 0
    tenants: set[UUID] = field(default_factory=set)


def reseal(
    database: Database,
    master_keys: MasterKeys,
    blobs: BlobStore | None = None,
    *,
    force: bool = False,
) -> Resealed:
    """Seal everything anew that another key than the newest of these sealed.

    A tenant's audit entry is written with the first of its seals. Raises `Conflict` while a process
    has another active key (unless `force`): it would go on to seal under that key, and may not even
    have this one; and `Unavailable` where the object store is away.
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
            after = _batch(database, master_keys, blobs, place, after, done)
    _log.info("resealed", key=newest, count=done.resealed, unopened=done.unopened)
    return done


class _Row(NamedTuple):
    """A row that another key sealed: its key, what `identity` takes, and bytes or object."""

    key: tuple[Any, ...]
    sealed_for: tuple[Any, ...]
    sealed: bytes | None
    blob: UUID | None


def _batch(
    database: Database,
    master_keys: MasterKeys,
    blobs: BlobStore | None,
    place: SealedColumn,
    after: tuple[Any, ...],
    done: Resealed,
) -> tuple[Any, ...] | None:
    """Reseal the next rows of a column; return the key of the last, None at the end."""
    width = len(place.key)
    keys = ", ".join(f"t.{name}" for name in place.key)
    behind = f"AND ({keys}) > ({', '.join(['%s'] * width)})" if after else ""
    query = place.next_rows.format(behind=behind).encode()
    with database.across_tenants() as session:
        found = cursor(session).execute(query, [master_keys.header, *after], binary=True)
        rows = [_Row(row[:width], row[width:-2], row[-2], row[-1]) for row in found.fetchall()]
    objects = {row.key: Blob(row.blob, place.table, *row.key) for row in rows if row.blob}
    if objects and blobs is None:
        raise Unavailable("Bytes lie in an object store, and BLOB_URL names none here.")
    read = blobs.get(list(objects.values())) if blobs is not None and objects else {}
    changes, moved, unopened = [], [], []
    for key, sealed_for, stored, blob in rows:
        sealed = read[objects[key]] if blob else stored
        try:
            fresh = master_keys.reseal(sealed or b"", place.identity(*sealed_for))
        except CannotOpen as error:
            named = [each.hex() if isinstance(each, bytes) else str(each) for each in key]
            unopened.append({"key": named, "why": str(error)})
            continue
        if blob:
            moved.append((objects[key], objects[key]._replace(blob=new_id(fresh)), fresh))
        else:
            changes.append((fresh, *key, (sealed or b"")[:ALIKE_IN_NONE]))
    if unopened:
        # One line a batch: if an old key is missing there may be millions.
        _log.error("unsealing_failed", place=str(place), count=len(unopened), first=unopened[0])
    if moved and blobs is not None and not blobs.put([(new, fresh) for _, new, fresh in moved]):
        raise Unavailable("The object store (BLOB_URL) does not answer; try again in a moment.")
    done.unopened += len(unopened)
    if changes or moved:
        with database.across_tenants() as session:
            cur = cursor(session)
            this_row = " AND ".join(f"t.{name} = %s" for name in place.key)
            cur.executemany(
                f"UPDATE {place.table} AS t SET {place.column} = %b"
                f" WHERE {this_row} AND substr(t.{place.column}, 1, {ALIKE_IN_NONE}) = %s".encode(),
                changes,
            )
            count = cur.rowcount if changes else 0
            count += rows_of_blobs.rename(session, [(old, new.blob) for old, new, _ in moved])
            done.resealed += count
            if place.has_tenant and count:
                # Last, as it locks the chains' heads until the commit.
                tenants = {each[1] for each in changes} | {old.tenant_id for old, *_ in moved}
                _audit(session, master_keys.ids[0], tenants - done.tenants)
                done.tenants |= tenants
    return rows[-1].key if rows else None


def _audit(session: Session, newest: str, tenants: Iterable[UUID]) -> None:
    for tenant in sorted(tenants):
        try:
            target = ("master_key", newest)
            chain.append(session, tenant, OPERATOR, "master_key.rotate", target=target)
        except AuditChainBroken as error:
            # A broken chain must not keep an old key in use: resealing goes on.
            alerts.report_break_in(session, tenant, error)


@dataclass(frozen=True)
class KeyReport:
    """The number of seals in each column, by key id (None: bytes that are no seal).

    `in_front` has the keys, besides the newest, that were recently active in a process, and when.
    """

    master_keys: MasterKeys
    seals: Mapping[str | None, Counter[SealedColumn]]
    in_front: Mapping[str, datetime]

    @property
    def missing(self) -> list[str]:
        """The keys of existing seals that MASTER_KEYS lacks."""
        return sorted(key for key in self.seals if key and key not in self.master_keys.ids)

    def lines(self) -> Iterator[str]:
        """Yield the lines of the report."""
        told = {key_id: self._verdict(key_id) for key_id in (*self.master_keys.ids, *self.missing)}
        titles: dict[str | None, str] = {key: f"{key}: {said}" for key, said in told.items()}
        if None in self.seals:
            titles[None] = "not sealed at all: changed in the database"
        for key_id, title in titles.items():
            yield title
            for place, count in self.seals.get(key_id, Counter()).items():
                yield f"  {count:>9}  {place}"

    def _verdict(self, key_id: str) -> str:
        seals = self.seals.get(key_id, Counter()).total()
        if key_id in self.missing:
            return f"MISSING from MASTER_KEYS: {seals} seals do not open without it. Put it back."
        if key_id == self.master_keys.ids[0]:
            return f"keep it: it is in front and seals; {seals} seals are under it"
        if seals:
            return f"keep it: {seals} seals are under it. `master-key reseal` seals them anew."
        if key_id in self.in_front:
            return (
                f"keep it: nothing is under it, but it was in front of some process's MASTER_KEYS "
                f"at {rfc3339(self.in_front[key_id])}. Restart that, and ask again later."
            )
        return (
            "nothing in the database is under it: it can be dropped from MASTER_KEYS, or put in "
            "front if it is new"
        )


def report(database: Database, master_keys: MasterKeys) -> KeyReport:
    """Count all seals by key, and record the keys without seals.

    Reads the beginning of each seal, so it costs as much as reading each row.
    """
    seals: dict[str | None, Counter[SealedColumn]] = {}
    with database.across_tenants() as session:
        began = database_now(session)
    for place in SEALED_COLUMNS:
        # The distinct beginnings of a column's seals: these name the key (see `key_of`).
        query = (
            f"SELECT {place.begins} AS begins, count(*)"
            f" FROM {place.table} AS t WHERE {place.begins} IS NOT NULL GROUP BY begins"
        )
        with database.across_tenants() as session:
            for begins, count in cursor(session).execute(query.encode()):
                seals.setdefault(key_of(begins), Counter())[place] += count
    with database.across_tenants() as session:
        key_registry.settle(session, master_keys, {key for key in seals if key}, began=began)
        in_front = dict(key_registry.in_front(session, besides=master_keys.ids[0], since=began))
        return KeyReport(master_keys, seals, in_front)
