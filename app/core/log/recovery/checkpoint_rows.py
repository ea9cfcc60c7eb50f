"""Checkpoints put right from the leaves: their rows, and notes that the log's key signs again.

A signature of Ed25519 is deterministic: a note signed again has the bytes that were published.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy.orm import Session

from app.core import signing_keys
from app.core.log import candidates, publication
from app.core.log.generations import Generation
from app.core.log.publication import StoredCheckpoint
from app.database import cursor
from app.errors import LogDamaged
from app.ledger.checkpoints import Checkpoint
from app.ledger.notes import Signer
from app.lib.crypto.sealing import CannotOpen, MasterKeys

# Of two prepared ones the newer tree holds the other, also what a witness has cosigned of it.
_WITHDRAW = """
WITH withdrawn AS (
    SELECT generation, size FROM checkpoints
     WHERE generation = %s AND note IS NULL AND size <> %s),
     cosigned AS (
    DELETE FROM checkpoint_cosignatures AS s USING withdrawn AS w
     WHERE s.generation = w.generation AND s.size = w.size)
DELETE FROM checkpoints AS c USING withdrawn AS w
 WHERE c.generation = w.generation AND c.size = w.size
"""
_RESTORE = """
INSERT INTO checkpoints AS c (generation, size, root, note, published_at)
VALUES (%(generation)s, %(size)s, %(root)s, %(note)s,
        CASE WHEN %(note)s::bytea IS NOT NULL THEN clock_timestamp() END)
    ON CONFLICT (generation, size) DO UPDATE
   SET root = excluded.root,
       note = excluded.note,
       published_at = CASE WHEN excluded.note IS NOT NULL
                           THEN coalesce(c.published_at, excluded.published_at) END
"""
_PREPARED = "SELECT FROM checkpoints WHERE generation = %s AND note IS NULL AND size > %s"


@dataclass(frozen=True)
class Known:
    """Evidence of the published tree: the newest row, the newest with a note, a candidate.

    `outside` is the checkpoint that others have of the log: the head outside, or what the successor
    of an ended log names; None without one.
    """

    last: StoredCheckpoint | None
    published: StoredCheckpoint | None
    candidate: Checkpoint | None
    outside: Checkpoint | None

    @classmethod
    def of(cls, session: Session, generation: Generation, outside: Checkpoint | None) -> "Known":
        """Read what is stored of a log."""
        newest = publication.newest(session, generation)
        candidate = candidates.of(session, generation)
        return cls(
            publication.row(session, generation),
            None
            if newest is None
            else publication.row(session, generation, newest.checkpoint.size),
            None if candidate is None else candidate.checkpoint,
            outside,
        )

    def without_outside(self) -> "Known":
        """Return the same where what others have is of another tree."""
        return replace(self, outside=None)

    @property
    def stored(self) -> int:
        """The largest size of a row; 0 without any."""
        return 0 if self.last is None else self.last.checkpoint.size

    @property
    def sizes(self) -> set[int]:
        """The sizes whose roots have to be known."""
        rows = (each.checkpoint for each in (self.last, self.published) if each is not None)
        found = (*rows, self.candidate, self.outside)
        return {each.size for each in found if each is not None}

    def require(self, generation: Generation, roots: Mapping[int, bytes]) -> None:
        """Raise `LogDamaged` unless these roots are those of the tree that was published."""
        if self.outside is not None and roots[self.outside.size] != self.outside.root:
            raise _other_root(generation, self.outside.size)
        if self.last is None:
            if self.outside is None:
                raise LogDamaged(
                    f"Not one checkpoint of {generation.origin} is left, and none is kept outside: "
                    "nothing shows what was published."
                )
            return
        size = self.last.checkpoint.size
        found = Checkpoint(generation.origin, size, roots[size])
        is_covered = self.outside is not None and self.outside.size >= size
        if not is_covered and found not in (self.last.checkpoint, self.last.signed):
            raise _other_root(generation, size)

    def proven(self, roots: Mapping[int, bytes]) -> int:
        """Return up to which size others have this tree, or the log has signed it."""
        rows = (each.signed for each in (self.last, self.published) if each is not None)
        known = (self.outside, self.candidate, *rows)
        return max(
            (each.size for each in known if each and roots.get(each.size) == each.root), default=0
        )


def put_right(
    session: Session,
    generation: Generation,
    known: Known,
    roots: Mapping[int, bytes],
    repair_with: MasterKeys | None,
    *,
    has_ended: bool,
) -> int | None:
    """Compare the rows with the roots of the leaves, and restore them with keys to sign by.

    Returns the size of the last row that is wrong. Raises `LogDamaged` unless these roots are of
    the tree that was published.
    """
    known.require(generation, roots)
    proven, last = known.proven(roots), None
    for right in _wrong(session, generation, roots):
        last = right.size
        if repair_with is not None:
            restore(session, repair_with, generation, right, proven=proven, has_ended=has_ended)
    return last


def _wrong(
    session: Session, generation: Generation, roots: Mapping[int, bytes]
) -> Iterator[Checkpoint]:
    """Yield each checkpoint whose row has another root or a bad note, and a newest one without row.

    `roots` are those of the leaves, by size. Raises `LogDamaged` where the log signed another root:
    it never signs two of one size.
    """
    newest = max(roots)
    for size in sorted(roots):
        right = Checkpoint(generation.origin, size, roots[size])
        row = publication.row(session, generation, size)
        if row is None:
            if size == newest:
                yield right
            continue
        if row.signed is not None and row.signed.size == size and row.signed != right:
            raise _other_root(generation, size)
        if row.checkpoint != right or (row.note is not None and row.signed != right):
            yield right


def _other_root(generation: Generation, size: int) -> LogDamaged:
    """Return the error that says that the leaves are not those of the tree that was published."""
    return LogDamaged(
        f"The leaves give another root than {generation.origin} published at {size}: more of them "
        "were changed than their copies can tell. Restore these tables from a backup."
    )


def restore(
    session: Session,
    master_keys: MasterKeys,
    generation: Generation,
    right: Checkpoint,
    *,
    proven: int,
    has_ended: bool,
) -> None:
    """Put the row of a checkpoint right that the leaves prove.

    A note that is good stays. One that is not is signed again up to the size `proven`; beyond it
    the row is prepared again, and the next integration signs it, once the head outside says the
    same. Raises `LogDamaged` where no integration would.
    """
    row = publication.row(session, generation, right.size)
    note = None
    if row is not None and row.signed == right:
        note = row.note
    elif right.size <= proven and (has_ended if row is None else row.note is not None):
        note = _signed(session, master_keys, generation, right)
    elif row is None or row.note is not None:
        _require_next(session, generation, right.size, has_ended=has_ended)
    cur = cursor(session)
    if note is None:
        cur.execute(_WITHDRAW, (generation.number, right.size))
    place = {"generation": generation.number, "size": right.size}
    cur.execute(_RESTORE, place | {"root": right.root, "note": note})


def _require_next(session: Session, generation: Generation, size: int, *, has_ended: bool) -> None:
    """Raise `LogDamaged` unless the next integration would sign this size."""
    follows = cursor(session).execute(_PREPARED, (generation.number, size)).fetchone() is not None
    if has_ended or follows:
        raise LogDamaged(
            f"The checkpoint at {size} of {generation.origin} has no note that the log signed, and "
            "nothing that others hold shows its tree. Restore that row from a backup."
        )


def _signed(
    session: Session, master_keys: MasterKeys, generation: Generation, right: Checkpoint
) -> bytes:
    try:
        key = signing_keys.opened(session, master_keys, generation.key_id)
    except (LookupError, CannotOpen) as error:
        raise LogDamaged(
            f"The checkpoint at {right.size} of {generation.origin} has to be signed again, and "
            f"the log's key does not open: {error}"
        ) from None
    private = Ed25519PrivateKey.from_private_bytes(key.seed)
    return bytes(right.sign(Signer(generation.origin, private)))
