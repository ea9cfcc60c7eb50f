"""The storage port of packs: written and read in parts, never whole in memory.

A part has sealed bytes, or names the records whose bundles are its lines: these are read from the
bundles themselves, so what has expired is in no pack. A foreign key deletes a record's pack with
its bundle.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import NamedTuple
from uuid import UUID

from sqlalchemy.orm import Session

from app import ids
from app.core.blobs import rows
from app.core.blobs import store as blob_store
from app.core.blobs.reading import Row, Vanished, opened
from app.core.blobs.store import Item, Stowed, Whole, stow
from app.core.records import bundles
from app.database import Tx, cursor
from app.lib.crypto.sealing import CannotOpen, MasterKeys
from app.settings import Settings

KIND = "evidence_pack_parts"
PART_BYTES = 256 * 1024
# Replaced packs deleted in one run: deleting costs as much as storing, and must not block others.
MOST_AT_ONCE = 20


class Source(NamedTuple):
    """The inputs of a pack besides its bundles: the same source gives the same bytes.

    The checkpoint by its generation and size, the `rank` of what others say of it, the key that
    signs the pack, the `recipe` of the service's own (`building`), and the state of what may change
    beside (`further`: what stands before its "/" decides whether the pack can be read at all).
    """

    generation: int
    checkpoint_size: int
    rank: int
    key_id: str
    recipe: str
    further: str


class About(NamedTuple):
    """What a pack is of: the `record` or `session` with this id."""

    tenant_id: UUID
    kind: str
    id: UUID

    @property
    def text(self) -> str:
        """Its id, as callers know it."""
        return ids.text(self.kind[:3], self.id)


@dataclass(frozen=True)
class Pack:
    """A pack that can be given out: `sha256` and `size` are of the whole ZIP."""

    about: About
    id: UUID
    sha256: bytes
    size: int
    source: Source

    @property
    def names(self) -> dict[str, str]:
        """How the service's log names it."""
        return {self.about.kind: self.about.text, "pack": str(self.id)}


class Lines(Whole):
    """Lines of bundles, and of which: they are stored already."""

    record_ids: list[UUID]


_FIND = """
SELECT id, sha256, size, generation, checkpoint_size, evidence_rank, key_id, recipe, further
  FROM evidence_packs
 WHERE tenant_id = %s AND {}_id = %s AND superseded_at IS NULL
"""
_ADD = """
INSERT INTO evidence_packs (tenant_id, id, {}_id, generation, checkpoint_size, evidence_rank,
                            key_id, recipe, further, size, sha256)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %b)
"""
_PART = """
INSERT INTO evidence_pack_parts (tenant_id, pack_id, starts, bytes, blob, record_ids)
VALUES (%s, %s, %s, %b, %s, %s)
"""
_SUPERSEDE = """
UPDATE evidence_packs SET superseded_at = clock_timestamp()
 WHERE tenant_id = %s AND {}_id = %s AND superseded_at IS NULL
"""
_READ = f"""
SELECT p.starts, p.bytes, p.blob, p.record_ids FROM evidence_pack_parts AS p
 WHERE p.tenant_id = %s AND p.pack_id = %s AND p.starts <= %s
   AND (%s = 'session' OR EXISTS (SELECT {bundles.KEPT}))
 ORDER BY p.starts DESC LIMIT 1
"""
_DISCARD = "DELETE FROM evidence_packs WHERE tenant_id = %s AND id = %s"
# A pack that was replaced may still be on its way to a reader.
_FORGET = """
DELETE FROM evidence_packs WHERE (tenant_id, id) IN (
    SELECT tenant_id, id FROM evidence_packs
     WHERE superseded_at < clock_timestamp() - interval '1 hour' LIMIT %s)
"""


def find(tx: Tx, about: About) -> Pack | None:
    """Return the pack that is given out; None before the first is built."""
    query = _FIND.format(about.kind).encode()
    row = cursor(tx).execute(query, (about.tenant_id, about.id)).fetchone()
    if row is None:
        return None
    pack_id, digest, size, *source = row
    return Pack(about, pack_id, bytes(digest), size, Source(*source))


class Part(NamedTuple):
    """A part on its way into the table: where it begins, and what its row is to have."""

    starts: int
    stowed: Stowed
    record_ids: list[UUID] | None = None


class Writer:
    """Writes one pack: its `parts`, which `replace` then stores."""

    def __init__(self, settings: Settings, about: About, source: Source, size: int) -> None:
        self._settings = settings
        self._about, self._source, self._size = about, source, size
        self._id = ids.new()
        self._digest = sha256()

    def parts(self, archive: Iterable[bytes]) -> Iterator[Part]:
        """Seal an archive part by part; with an object store all lie there before the first."""
        parts = self._sealed(archive)
        return parts if self._settings.blob_url is None else iter(list(parts))

    def _sealed(self, archive: Iterable[bytes]) -> Iterator[Part]:
        master_keys, about, starts = self._settings.master_keys, self._about, 0
        blobs = blob_store.of(self._settings.blob_url)
        for part in blob_store.cut(archive, PART_BYTES):
            self._digest.update(part)
            if isinstance(part, Lines):
                yield Part(starts, Stowed(None), part.record_ids)
            else:
                named = identity(about.tenant_id, about.id, self._id, starts)
                sealed = master_keys.seal(part, named)
                (kept,) = stow(blobs, [Item(KIND, about.tenant_id, self._id, starts, sealed)])
                yield Part(starts, kept)
            starts += len(part)

    def replace(self, session: Session, parts: Iterable[Part]) -> None:
        """Store the pack, to be given out in place of the one before.

        Raises `Vanished` for a part whose object is too old to be named by a row.
        """
        cur, (tenant_id, kind, of_id) = cursor(session), self._about
        for part in parts:
            add_part(session, tenant_id, self._id, part)
        cur.execute(_SUPERSEDE.format(kind).encode(), (tenant_id, of_id))
        facts = (*self._source, self._size, self._digest.digest())
        cur.execute(_ADD.format(kind).encode(), (tenant_id, self._id, of_id, *facts))


def add_part(session: Session, tenant_id: UUID, pack_id: UUID, part: Part) -> None:
    """Store a part's row. Raises as `Writer.replace`."""
    rows.require_fresh(session, part.stowed)
    values = (tenant_id, pack_id, part.starts, *part.stowed, part.record_ids)
    cursor(session).execute(_PART, values)


def read_part(tx: Session, master_keys: MasterKeys, pack: Pack, at: int) -> tuple[int, bytes]:
    """Return where the part begins that has byte `at` of the pack, and its bytes.

    Raises `Vanished`, `CannotOpen` when a part or a bundle was changed, and `KeyMissing`.
    """
    tenant_id, kind, of_id = pack.about
    wanted = (tenant_id, pack.id, at, kind, tenant_id, of_id)
    row = cursor(tx).execute(_READ, wanted, binary=True).fetchone()
    if row is None:
        raise Vanished
    starts, content, blob, record_ids = row
    if record_ids is None:
        stored = Row(pack.id, starts, content, blob)
        named = identity(tenant_id, of_id, pack.id, starts)
        part = opened(master_keys, KIND, tenant_id, stored, named)
    else:
        found = bundles.read_many(tx, master_keys, tenant_id, record_ids)
        if found.damaged:
            raise CannotOpen("a bundle in it was changed")
        if len(found.contents) < len(record_ids):
            raise Vanished
        part = lines(found.contents, record_ids)
    if at >= starts + len(part):
        raise CannotOpen("a part of it is missing")
    return starts, part


def lines(found: Mapping[UUID, bytes], record_ids: list[UUID]) -> Lines:
    """Return the lines of these records' bundles, in this order."""
    made = Lines(b"".join(found[each] + b"\n" for each in record_ids))
    made.record_ids = record_ids
    return made


def identity(tenant_id: UUID, of_id: UUID, pack_id: UUID, starts: int) -> str:
    """Name the place of a part, for which it is sealed."""
    return f"evidence_packs/{tenant_id}/{of_id}/{pack_id}/{starts}"


def discard(session: Session, pack: Pack) -> None:
    """Delete a pack."""
    cursor(session).execute(_DISCARD, (pack.about.tenant_id, pack.id))


def forget_replaced(session: Session) -> int:
    """Delete some packs that were replaced, of all tenants.

    Return how many; fewer than MOST_AT_ONCE are the last.
    """
    return cursor(session).execute(_FORGET, (MOST_AT_ONCE,)).rowcount
