"""Checkpoints: prepared, then published once the head outside the database says the same.

Prepared is (size, root) alone. A note exists from the moment it is published on, so nothing that is
signed can be lost, and nothing that could still be withdrawn is signed.
"""

from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.core import signing_keys
from app.core.log import generations, tile_rows
from app.core.log.generations import Generation
from app.core.signing_keys import Purpose
from app.database import Tx, cursor
from app.errors import LogDamaged
from app.ledger.checkpoints import Checkpoint
from app.ledger.notes import Signer, VerifierKey
from app.lib.sealing import MasterKeys
from app.models import SigningKey


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


_PUBLISHED = """
SELECT size, root, note FROM checkpoints
 WHERE generation = %s AND note IS NOT NULL ORDER BY size DESC LIMIT 1
"""
_AT = """
SELECT size, root, note FROM checkpoints WHERE generation = %s AND size = %s AND note IS NOT NULL
"""
_PREPARED = "SELECT size, root FROM checkpoints WHERE generation = %s AND note IS NULL"
_STORED = "SELECT size, root FROM checkpoints WHERE generation = %s ORDER BY size DESC LIMIT 1"


def newest(tx: Tx, generation: Generation) -> Published | None:
    """Return what the world was told last."""
    row = cursor(tx).execute(_PUBLISHED, (generation.number,)).fetchone()
    return None if row is None else _read(generation, *row)


def at(tx: Tx, generation: Generation, size: int) -> Published | None:
    """Return what the world was told when the log had this size."""
    row = cursor(tx).execute(_AT, (generation.number, size)).fetchone()
    return None if row is None else _read(generation, *row)


def current(tx: Tx) -> Published | None:
    """Return what the world was told last by the newest generation."""
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


def publish(session: Session, master_keys: MasterKeys, work: Prepared, *, head_kept: bool) -> None:
    """Sign what was prepared and let it be seen; nothing if another has done so meanwhile."""
    generation = generations.lock(session, wait=True)
    if generation is None or generation.number != work.generation.number:
        return
    found = prepared(session, generation)
    if found is None or found.checkpoint != work.checkpoint:
        return
    note = work.checkpoint.sign(_signer(session, master_keys, generation))
    cursor(session).execute(
        "UPDATE checkpoints SET note = %s, published_at = clock_timestamp()"
        " WHERE generation = %s AND size = %s AND note IS NULL",
        (bytes(note), generation.number, work.checkpoint.size),
    )
    generations.mark(session, generation.number, head_kept=head_kept, trouble=None)


def verifier_key(session: Session, generation: Generation) -> VerifierKey:
    """Return what others verify a generation's checkpoints with."""
    public = session.scalars(
        select(SigningKey.public_key).where(SigningKey.key_id == generation.key_id)
    ).one()
    return VerifierKey.ed25519(generation.origin, bytes(public))


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
