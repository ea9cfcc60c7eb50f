"""Checkpoints: prepared, signed and published, in this order.

A prepared checkpoint is (size, root) without a note. It is signed once the head outside says the
same, so nothing that could still be withdrawn is signed. With LOG_REQUIRE_QUORUM the signed note is
a *candidate* first, in a column of its own: witnesses alone see it. There is one at a time.
"""

from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Protocol

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy.orm import Session

from app.core import signing_keys
from app.core.log import generations, tile_rows
from app.core.log.generations import Generation
from app.core.signing_keys import Purpose
from app.database import Tx, cursor
from app.errors import LogDamaged
from app.ledger import checkpoints
from app.ledger.checkpoints import Checkpoint
from app.ledger.notes import Note, Signer, VerifierKey
from app.lib.crypto.sealing import MasterKeys
from app.lib.crypto.signing import PublicKey

MENDED_BY = "`python -m app.manage log rebuild` mends what can be mended."


@dataclass(frozen=True)
class Prepared:
    """A checkpoint to be published, and the one it follows: of this log, or its predecessor's."""

    generation: Generation
    checkpoint: Checkpoint
    previous: Checkpoint | None


@dataclass(frozen=True)
class Published:
    """A checkpoint with the bytes of its signed note."""

    generation: Generation
    checkpoint: Checkpoint
    note: bytes


class Gate(Protocol):
    """Decides whether a signed checkpoint may be published."""

    def admits(self, session: Session, candidate: Published) -> bool:
        """Decide on a candidate, in the transaction that signed it or in a later one."""


@dataclass(frozen=True)
class StoredCheckpoint:
    """A row of `checkpoints` as it is stored; `signed` is what its note says, if the log signed it.

    Without a note it is prepared.
    """

    checkpoint: Checkpoint
    note: bytes | None
    signed: Checkpoint | None


_PUBLISHED = """
SELECT size, root, note FROM checkpoints
 WHERE generation = %s AND note IS NOT NULL ORDER BY size DESC LIMIT 1
"""
_ROOT = "SELECT root FROM checkpoints WHERE generation = %s AND size = %s"
_AT = """
SELECT size, root, note FROM checkpoints WHERE generation = %s AND size = %s AND note IS NOT NULL
"""
_ROW = """
SELECT size, root, note FROM checkpoints
 WHERE generation = %(generation)s AND (%(size)s::bigint IS NULL OR size = %(size)s)
 ORDER BY size DESC LIMIT 1
"""
_PREPARED = "SELECT size, root FROM checkpoints WHERE generation = %s AND note IS NULL"
_SIGN = """
UPDATE checkpoints SET unpublished_note = %(note)s, signed_at = clock_timestamp()
 WHERE generation = %(generation)s AND size = %(size)s AND note IS NULL
   AND unpublished_note IS DISTINCT FROM %(note)s
"""
_PUBLISH = """
UPDATE checkpoints
   SET note = %(note)s, published_at = clock_timestamp(), unpublished_note = NULL, signed_at = NULL
 WHERE generation = %(generation)s AND size = %(size)s AND note IS NULL
"""
_STORED = "SELECT size, root FROM checkpoints WHERE generation = %s ORDER BY size DESC LIMIT 1"


def newest(tx: Tx, generation: Generation) -> Published | None:
    """Return the last published checkpoint of a generation."""
    row = cursor(tx).execute(_PUBLISHED, (generation.number,)).fetchone()
    return None if row is None else _read(generation, *row)


def at(tx: Tx, generation: Generation, size: int) -> Published | None:
    """Return the published checkpoint of this size."""
    row = cursor(tx).execute(_AT, (generation.number, size)).fetchone()
    return None if row is None else _read(generation, *row)


def intact(last: Published) -> Published:
    """Return a checkpoint that is as the log signed it. Raises `LogDamaged` for any other."""
    if not is_intact(last):
        raise LogDamaged(
            f"The stored checkpoint at {last.checkpoint.size} is not as the log signed it. "
            f"{MENDED_BY}"
        )
    return last


def is_intact(last: Published) -> bool:
    """Say whether a checkpoint is as the log signed it."""
    return _signed(last.generation, last.note) == last.checkpoint


def row(tx: Tx, generation: Generation, size: int | None = None) -> StoredCheckpoint | None:
    """Return the row of a size, or the newest one, not verified."""
    values = {"generation": generation.number, "size": size}
    found = cursor(tx).execute(_ROW, values).fetchone()
    if found is None:
        return None
    at, root, note = found
    signed = None if note is None else _signed(generation, bytes(note))
    checkpoint = Checkpoint(generation.origin, at, bytes(root))
    return StoredCheckpoint(checkpoint, None if note is None else bytes(note), signed)


def root_at(tx: Tx, generation: Generation, size: int) -> bytes | None:
    """Return the root that was prepared or published for this size, as its row has it."""
    row = cursor(tx).execute(_ROOT, (generation.number, size)).fetchone()
    return None if row is None else bytes(row[0])


def current(tx: Tx) -> Published | None:
    """Return the last published checkpoint of the newest generation."""
    generation = generations.newest(tx)
    return None if generation is None else newest(tx, generation)


def stored(tx: Tx, generation: Generation) -> Checkpoint:
    """Return the size and root that the stored tiles have, prepared or published."""
    row = cursor(tx).execute(_STORED, (generation.number,)).fetchone()
    if row is None:
        raise LogDamaged(f"Not one checkpoint of {generation.origin} is left.")
    return Checkpoint(generation.origin, row[0], bytes(row[1]))


def prepared(tx: Tx, generation: Generation) -> Prepared | None:
    """Return what is prepared and not published, after holding it against the tiles."""
    row = cursor(tx).execute(_PREPARED, (generation.number,)).fetchone()
    if row is None:
        return None
    checkpoint = Checkpoint(generation.origin, row[0], bytes(row[1]))
    before = newest(tx, generation)
    if before is not None and before.checkpoint.size >= checkpoint.size:
        raise LogDamaged(f"Size {checkpoint.size} was prepared behind what is published.")
    if tile_rows.root(tx, generation, checkpoint.size) != checkpoint.root:
        raise LogDamaged(f"The tiles give another root than was prepared for {checkpoint.size}.")
    return _following(before, checkpoint, generation)


def prepare(
    session: Session, generation: Generation, checkpoint: Checkpoint, before: Published | None
) -> Prepared:
    """Store the checkpoint of a tree that has grown."""
    cursor(session).execute(
        "INSERT INTO checkpoints (generation, size, root) VALUES (%s, %s, %s)",
        (generation.number, checkpoint.size, checkpoint.root),
    )
    return _following(before, checkpoint, generation)


def publish(
    session: Session,
    master_keys: MasterKeys,
    work: Prepared,
    *,
    head_kept: bool,
    gate: Gate | None = None,
) -> bool:
    """Sign what was prepared and let it be seen; nothing if another has done so meanwhile.

    Returns False when `gate` does not admit it: then it is a candidate, and waits.
    """
    generation = generations.lock(session, wait=True)
    if generation is None or generation.number != work.generation.number:
        return True
    found = prepared(session, generation)
    if found is None or found.checkpoint != work.checkpoint:
        return True
    note = bytes(work.checkpoint.sign(_signer(session, master_keys, generation)))
    place = {"note": note, "generation": generation.number, "size": work.checkpoint.size}
    generations.mark(session, generation.number, head_kept=head_kept, trouble=None)
    if gate is not None:
        cursor(session).execute(_SIGN, place)
        if not gate.admits(session, Published(generation, work.checkpoint, note)):
            return False
    cursor(session).execute(_PUBLISH, place)
    return True


def _signed(generation: Generation, note: bytes) -> Checkpoint | None:
    """Return the checkpoint in a note if the log signed it."""
    return _read_note(note, generation.origin, generation.key_id, generation.public_key)


# The newest checkpoint is asked for again and again, and verified once.
@lru_cache(maxsize=64)
def _read_note(note: bytes, origin: str, key_id: str, public: bytes) -> Checkpoint | None:
    try:
        if PublicKey(public).id != key_id:
            # The table has another key: no signature can be checked, and none is the worse for it.
            return Checkpoint.parse(Note.parse(note).text)
        return checkpoints.read(note, VerifierKey.ed25519(origin, public))
    except ValueError:
        return None


def _read(generation: Generation, size: int, root: bytes, note: bytes) -> Published:
    return Published(generation, Checkpoint(generation.origin, size, bytes(root)), bytes(note))


def _following(
    before: Published | None, checkpoint: Checkpoint, generation: Generation
) -> Prepared:
    previous = generation.predecessor if before is None else before.checkpoint
    return Prepared(generation, checkpoint, previous)


def _signer(session: Session, master_keys: MasterKeys, generation: Generation) -> Signer:
    key = signing_keys.current(session, master_keys, Purpose.LOG)
    if key.public.id != generation.key_id:
        raise LogDamaged(f"The log's key is {key.public.id}, and {generation.key_id} began it.")
    return Signer(generation.origin, Ed25519PrivateKey.from_private_bytes(key.seed))


_CANDIDATE = """
SELECT size, root, unpublished_note FROM checkpoints
 WHERE generation = %s AND note IS NULL AND unpublished_note IS NOT NULL
"""
_SIGNED_AT = "SELECT signed_at FROM checkpoints WHERE generation = %s AND size = %s"


def candidate(tx: Tx, generation: Generation) -> Published | None:
    """Return a log's candidate; None without one, or for one that the log did not sign."""
    row = cursor(tx).execute(_CANDIDATE, (generation.number,)).fetchone()
    if row is None:
        return None
    checkpoint = Checkpoint(generation.origin, row[0], bytes(row[1]))
    found = Published(generation, checkpoint, bytes(row[2]))
    return found if is_intact(found) else None


def current_candidate(tx: Tx) -> Published | None:
    """Return the candidate candidate the newest generation."""
    generation = generations.newest(tx)
    return None if generation is None else candidate(tx, generation)


def shown_at(tx: Tx, generation: Generation, size: int) -> Published | None:
    """Return what witnesses are shown candidate a size: what was published, or is about to be."""
    found = candidate(tx, generation)
    if found is not None and found.checkpoint.size == size:
        return found
    return at(tx, generation, size)


def signed_at(tx: Tx, candidate: Published) -> datetime | None:
    """Return when a candidate was signed; None if it is none any more."""
    place = (candidate.generation.number, candidate.checkpoint.size)
    row = cursor(tx).execute(_SIGNED_AT, place).fetchone()
    return None if row is None else row[0]
