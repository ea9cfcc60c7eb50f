"""The storage port of packs: written and read in parts, never whole in memory.

Each part is sealed for its position. A foreign key deletes a pack with its bundle.
"""

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias
from uuid import UUID

from sqlalchemy.orm import Session

from app import ids
from app.core.blobs import writing
from app.core.blobs.reading import Row, opened
from app.core.blobs.writing import Item, Stowed
from app.core.records import bundles
from app.database import Tx, cursor
from app.lib.crypto.sealing import MasterKeys

KIND = "evidence_pack_parts"
PART_BYTES = 256 * 1024
# Replaced packs deleted in one run: deleting costs as much as storing, and must not block others.
MOST_AT_ONCE = 20


class Source(NamedTuple):
    """The inputs of a pack besides its bundle: the same source gives the same bytes.

    The checkpoint by its generation and size, the `rank` of what others say of it, the key that
    signs the pack, the `recipe` of the service's own (`building.recipe`), and the state of its
    `further` files (`further_files.state`): in the order of their columns.
    """

    generation: int
    checkpoint_size: int
    rank: int
    key_id: str
    recipe: str
    further: str


@dataclass(frozen=True)
class StoredPack:
    """A pack that can be given out: `sha256` and `size` are of the whole ZIP."""

    tenant_id: UUID
    record_id: UUID
    id: UUID
    sha256: bytes
    size: int
    source: Source

    @property
    def target(self) -> tuple[str, str]:
        """What it is about, as the audit chain names it."""
        return "record", ids.text("rec", self.record_id)


@dataclass(frozen=True)
class SessionPack:
    """A pack of a whole session that can be given out, as a `StoredPack`."""

    tenant_id: UUID
    session_id: UUID
    id: UUID
    sha256: bytes
    size: int
    source: Source

    @property
    def target(self) -> tuple[str, str]:
        """What it is about, as the audit chain names it."""
        return "session", ids.text("ses", self.session_id)


_FIND = """
SELECT id, sha256, size, generation, checkpoint_size, evidence_rank, key_id, recipe, further
  FROM evidence_packs
 WHERE tenant_id = %s AND record_id = %s AND built_at IS NOT NULL AND superseded_at IS NULL
"""
_BEGIN = """
INSERT INTO evidence_packs (tenant_id, id, record_id, generation, checkpoint_size, evidence_rank,
                            key_id, recipe, further, size)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
"""
_PART = f"""
INSERT INTO evidence_pack_parts (tenant_id, pack_id, number, bytes, blob)
SELECT %(tenant)s, %(pack)s, %(number)s, %(bytes)b, %(blob)s::uuid
 WHERE %(bytes)b::bytea IS NOT NULL OR uuid_made_at(%(blob)s) > clock_timestamp() - {writing.FRESH}
"""
_SUPERSEDE = """
UPDATE evidence_packs SET superseded_at = clock_timestamp()
 WHERE tenant_id = %s AND record_id = %s AND built_at IS NOT NULL AND superseded_at IS NULL
"""
_FINISH = """
UPDATE evidence_packs SET sha256 = %s, built_at = clock_timestamp()
 WHERE tenant_id = %s AND id = %s
"""
_READ = f"""
SELECT p.pack_id, p.number, p.bytes, p.blob FROM evidence_pack_parts AS p
 WHERE p.tenant_id = %s AND p.pack_id = %s AND p.number = %s AND EXISTS (SELECT {bundles.KEPT})
"""
_DISCARD = "DELETE FROM evidence_packs WHERE tenant_id = %s AND id = %s"
# A pack that was replaced may still be on its way to a reader.
_FORGET = """
DELETE FROM evidence_packs WHERE (tenant_id, id) IN (
    SELECT tenant_id, id FROM evidence_packs
     WHERE superseded_at < clock_timestamp() - interval '1 hour' LIMIT %s)
"""

# Tenant, record and pack.
Place: TypeAlias = tuple[UUID, UUID, UUID]


class Vanished(Exception):
    """A part is not there any more: its bundle has expired, or the pack was discarded."""


def find(tx: Tx, tenant_id: UUID, record_id: UUID) -> StoredPack | None:
    """Return the pack of a record that is given out; None before the first is built."""
    row = cursor(tx).execute(_FIND, (tenant_id, record_id)).fetchone()
    if row is None:
        return None
    pack_id, sha256, size, *source = row
    return StoredPack(tenant_id, record_id, pack_id, bytes(sha256), size, Source(*source))


def begin(session: Session, place: Place, source: Source, size: int) -> None:
    """Begin a pack of `size` bytes. Call it with the bundle held."""
    tenant_id, record_id, pack_id = place
    cursor(session).execute(_BEGIN, (tenant_id, pack_id, record_id, *source, size))


def item(master_keys: MasterKeys, place: Place, number: int, content: bytes) -> Item:
    """Return part `number` (from 0) of a pack, sealed; each but the last has PART_BYTES."""
    tenant_id, _, pack_id = place
    sealed = master_keys.seal(content, identity(*place, number))
    return Item(KIND, tenant_id, pack_id, number, sealed)


def add_part(session: Session, place: Place, number: int, stowed: Stowed) -> None:
    """Store a part. Raises `Vanished` for one whose object is too old to be named by a row."""
    tenant_id, _, pack_id = place
    values = {"tenant": tenant_id, "pack": pack_id, "number": number, **stowed._asdict()}
    if cursor(session).execute(_PART, values).rowcount != 1:
        raise Vanished


def finish(session: Session, place: Place, sha256: bytes) -> None:
    """Let a pack whose parts are stored be given out, in place of the one before."""
    tenant_id, record_id, pack_id = place
    cur = cursor(session)
    cur.execute(_SUPERSEDE, (tenant_id, record_id))
    cur.execute(_FINISH, (sha256, tenant_id, pack_id))


def read_part(tx: Tx, master_keys: MasterKeys, pack: StoredPack, number: int) -> bytes:
    """Return one part's bytes. Raises `Vanished`, `sealing.CannotOpen` and `KeyMissing`."""
    wanted = (pack.tenant_id, pack.id, number, pack.tenant_id, pack.record_id)
    row = cursor(tx).execute(_READ, wanted, binary=True).fetchone()
    if row is None:
        raise Vanished
    named = identity(pack.tenant_id, pack.record_id, pack.id, number)
    return opened(master_keys, KIND, pack.tenant_id, Row(*row), named)


def discard(session: Session, tenant_id: UUID, pack_id: UUID) -> None:
    """Delete a pack."""
    cursor(session).execute(_DISCARD, (tenant_id, pack_id))


def forget_replaced(session: Session) -> int:
    """Delete some packs that were replaced, of all tenants.

    Return how many; fewer than MOST_AT_ONCE are the last.
    """
    return cursor(session).execute(_FORGET, (MOST_AT_ONCE,)).rowcount


def identity(tenant_id: UUID, record_id: UUID, pack_id: UUID, number: int) -> str:
    """Name the place of a part, for which it is sealed."""
    return f"evidence_packs/{tenant_id}/{record_id}/{pack_id}/{number}"
