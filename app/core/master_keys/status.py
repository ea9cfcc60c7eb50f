"""The report of `master-key status`: what is under each key, and which key can be dropped."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.orm import Session

from app.clock import rfc3339
from app.core.master_keys import key_registry
from app.core.master_keys.sealed_columns import SEALED_COLUMNS, SealedColumn
from app.database import Database, cursor, database_now
from app.lib.crypto.sealing import KEY_NAMED_IN, MasterKeys, key_of


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
        for key_id in (*self.master_keys.ids, *self.missing):
            yield f"{key_id}: {self._verdict(key_id)}"
            yield from self._counts(key_id)
        if None in self.seals:
            yield "not sealed at all: changed in the database"
            yield from self._counts(None)

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

    def _counts(self, key_id: str | None) -> Iterator[str]:
        for place, count in self.seals.get(key_id, Counter()).items():
            yield f"  {count:>9}  {place}"


def read(database: Database, master_keys: MasterKeys) -> KeyReport:
    """Count all seals by key, and record the keys without seals.

    Reads the beginning of each seal, so it costs as much as reading each row.
    """
    seals: dict[str | None, Counter[SealedColumn]] = {}
    with database.across_tenants() as session:
        began = database_now(session)
    for place in SEALED_COLUMNS:
        with database.across_tenants() as session:
            for begins, count in count_seals(session, place):
                seals.setdefault(key_of(begins), Counter())[place] += count
    with database.across_tenants() as session:
        key_registry.settle(session, master_keys, {key for key in seals if key}, began=began)
        in_front = dict(key_registry.in_front(session, besides=master_keys.ids[0], since=began))
        return KeyReport(master_keys, seals, in_front)


def count_seals(session: Session, place: SealedColumn) -> list[tuple[bytes, int]]:
    """Return the distinct beginnings of a column's seals (see `key_of`), with counts."""
    query = (
        f"SELECT substr({place.column}, 1, {KEY_NAMED_IN}) AS begins, count(*) FROM {place.table}"
        f" WHERE {place.column} IS NOT NULL GROUP BY begins"
    )
    return cursor(session).execute(query.encode()).fetchall()
