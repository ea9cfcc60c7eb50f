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
from app.ledger import notes
from app.ledger.notes import Checkpoint, Note, Signer, VerifierKey
from app.lib.crypto.sealing import MasterKeys
from app.lib.crypto.signing import PublicKey, SigningKey

MENDED_BY = "`python -m app.manage log rebuild` mends what can be mended."


@dataclass(frozen=True)
class Prepared:
    """A checkpoint to be published, and the one it follows: of this log, or its predecessor's."""

    generation: Generation
    checkpoint: Checkpoint
    previous: Checkpoint | None


@dataclass(frozen=True)
class Published:
    """A checkpoint with the bytes of its signed note; of a candidate also when it was signed."""

    generation: Generation
    checkpoint: Checkpoint
    note: bytes
    signed_at: datetime | None = None

    @property
    def is_intact(self) -> bool:
        """Whether it is as the log signed it."""
        return _signed(self.generation, self.note) == self.checkpoint

    def intact(self) -> "Published":
        """Return it if it is as the log signed it. Raises `LogDamaged` for any other."""
        if not self.is_intact:
            raise LogDamaged(
                f"The stored checkpoint at {self.checkpoint.size} is not as the log signed it. "
                f"{MENDED_BY}"
            )
        return self


class Gate(Protocol):
    """Decides whether a signed checkpoint may be published."""

    def admits(self, session: Session, candidate: Published) -> bool:
        """Decide on a candidate, in the transaction that signed it or in a later one."""


@dataclass(frozen=True)
class StoredCheckpoint:
    """A row of `checkpoints`, not verified; without a note it is prepared.

    `unpublished` is the candidate's note, signed at `signed_at`.
    """

    generation: Generation
    checkpoint: Checkpoint
    note: bytes | None
    unpublished: bytes | None
    signed_at: datetime | None

    @property
    def signed(self) -> Checkpoint | None:
        """What its note says, if the log signed it."""
        return None if self.note is None else _signed(self.generation, self.note)


_ROW = """
SELECT size, root, note, unpublished_note, signed_at FROM checkpoints
 WHERE generation = %(generation)s AND {state}
"""
# Of one size, or the newest: both are a range of the primary key.
_NEWEST = """
size >= coalesce(%(size)s, 0) AND size <= coalesce(%(size)s, 9223372036854775807)
 ORDER BY size DESC LIMIT 1
"""
_ANY, _PUBLISHED, _PREPARED = (
    _ROW.format(state=each).encode()
    for each in (_NEWEST, f"note IS NOT NULL AND {_NEWEST}", "note IS NULL")
)
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


def row(
    tx: Tx, generation: Generation, size: int | None = None, query: bytes = _ANY
) -> StoredCheckpoint | None:
    """Return the row of a size, or the newest one."""
    values = {"generation": generation.number, "size": size}
    found = cursor(tx).execute(query, values, binary=True).fetchone()
    if found is None:
        return None
    at, root, *rest = found
    return StoredCheckpoint(generation, Checkpoint(generation.origin, at, root), *rest)


def stored(tx: Tx, generation: Generation) -> Checkpoint:
    """Return the size and root that the stored tiles have, prepared or published."""
    found = row(tx, generation)
    if found is None:
        raise LogDamaged(f"Not one checkpoint of {generation.origin} is left.")
    return found.checkpoint


def at(tx: Tx, generation: Generation, size: int | None) -> Published | None:
    """Return the published checkpoint of this size, None: the last one."""
    found = row(tx, generation, size, _PUBLISHED)
    return None if found is None else Published(generation, found.checkpoint, found.note or b"")


def newest(tx: Tx, generation: Generation) -> Published | None:
    """Return the last published checkpoint of a generation."""
    return at(tx, generation, None)


def current(tx: Tx) -> Published | None:
    """Return the last published checkpoint of the newest generation."""
    generation = generations.newest(tx)
    return None if generation is None else newest(tx, generation)


def prepared(tx: Tx, generation: Generation) -> Prepared | None:
    """Return what is prepared and not published, after holding it against the tiles."""
    found = row(tx, generation, query=_PREPARED)
    if found is None:
        return None
    checkpoint, before = found.checkpoint, newest(tx, generation)
    if before is not None and before.checkpoint.size >= checkpoint.size:
        raise LogDamaged(f"Size {checkpoint.size} was prepared behind what is published.")
    if tile_rows.root(tx, generation, checkpoint.size) != checkpoint.root:
        raise LogDamaged(f"The tiles give another root than was prepared for {checkpoint.size}.")
    return _following(before, checkpoint, generation)


def candidate(tx: Tx, generation: Generation) -> Published | None:
    """Return a log's candidate; None without one, or for one that the log did not sign."""
    found = row(tx, generation, query=_PREPARED)
    if found is None or found.unpublished is None:
        return None
    shown = Published(generation, found.checkpoint, found.unpublished, found.signed_at)
    return shown if shown.is_intact else None


def current_candidate(tx: Tx) -> Published | None:
    """Return the candidate of the newest generation."""
    generation = generations.newest(tx)
    return None if generation is None else candidate(tx, generation)


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
    key = signing_keys.current(session, master_keys, Purpose.LOG)
    if key.public.id != generation.key_id:
        raise LogDamaged(f"The log's key is {key.public.id}, and {generation.key_id} began it.")
    note = bytes(work.checkpoint.sign(signer(generation, key)))
    place = {"note": note, "generation": generation.number, "size": work.checkpoint.size}
    generations.mark(session, generation.number, head_kept=head_kept, trouble=None)
    if gate is not None:
        cursor(session).execute(_SIGN, place)
        shown = candidate(session, generation)
        if shown is None or not gate.admits(session, shown):
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
        return notes.read_checkpoint(note, VerifierKey.ed25519(origin, public))
    except ValueError:
        return None


def _following(
    before: Published | None, checkpoint: Checkpoint, generation: Generation
) -> Prepared:
    previous = generation.predecessor if before is None else before.checkpoint
    return Prepared(generation, checkpoint, previous)


def signer(generation: Generation, key: SigningKey) -> Signer:
    """Return what signs a log's notes with its key."""
    return Signer(generation.origin, Ed25519PrivateKey.from_private_bytes(key.seed))
