"""The published log, as far as its signatures and the head outside confirm it."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sqlalchemy.orm import Session

from app.core import signing_keys
from app.core.log import generations, publication
from app.core.log.generations import Generation
from app.core.log.head import head_guard
from app.core.log.head.head_store import HeadStore
from app.core.log.publication import MENDED_BY, Published
from app.core.verification.checks.anchored_heads import Leaves
from app.core.verification.checks.log_walk import Walk
from app.core.verification.time_budget import Deadline
from app.errors import LogDamaged, LogRolledBack
from app.ledger import checkpoints, leaves
from app.ledger.checkpoints import Checkpoint
from app.ledger.notes import Malformed, Unverified, VerifierKey
from app.ledger.tiles import ENTRIES
from app.lib.crypto.sealing import CannotOpen, MasterKeys


@dataclass(frozen=True)
class Outside:
    """The head as it lay outside, read before the snapshot: whatever it names is in there by then.

    `kept` is False where no store is set.
    """

    kept: bool
    head: bytes | None

    @classmethod
    def read(cls, store: HeadStore | None) -> "Outside":
        """Ask the store, outside any transaction. Raises `LogHeadUnavailable`."""
        return cls(store is not None, None if store is None else store.read())

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The head, if there is one. Raises `LogHeadLost` for what is none."""
        return None if self.head is None else head_guard.read(self.head)


@dataclass(frozen=True)
class Succession:
    """A log that ended: its last checkpoint, and how many of its leaves this database still has."""

    before: Checkpoint
    held: int


def newest(session: Session, master_keys: MasterKeys, outside: Outside) -> Published | None:
    """Return the log's last checkpoint; None when the log has not begun or published nothing.

    Of a successor that has published nothing yet it is the ended log's, which holds the heads.
    Raises `LogRolledBack` and its kin where the head outside says otherwise, `LogDamaged` for a
    checkpoint that the log did not sign.
    """
    generation = generations.newest(session)
    if generation is None:
        if outside.head is not None:
            found = head_guard.read(outside.head)
            raise LogRolledBack(
                f"Size {found.size} of {found.origin} was published, and this database has no log."
            )
        return None
    if outside.kept:
        head_guard.judge(session, generation, outside.head)
    last = signed(session, master_keys, generation)
    if last is not None:
        return last
    # A successor's first checkpoint may wait for witnesses for days.
    ended = older(session, master_keys, generation)
    return next((each for each, _ in ended if each is not None), None)


def signed(session: Session, master_keys: MasterKeys, generation: Generation) -> Published | None:
    """Return the last checkpoint of a generation, its signature verified; None before the first.

    Raises `LogDamaged` also for a successor without an appointment.
    """
    generations.require_appointed(master_keys, generation)
    last = publication.newest(session, generation)
    if last is None:
        return None
    if read(session, master_keys, generation, last.checkpoint.size, last.note) != last.checkpoint:
        raise LogDamaged(f"The checkpoint at {last.checkpoint.size} was changed.")
    return last


def read(
    session: Session, master_keys: MasterKeys, generation: Generation, size: int, note: bytes
) -> Checkpoint:
    """Read what a generation signed at a size. Raises `LogDamaged` for what it did not sign.

    The key is the one sealed under MASTER_KEYS: a public key in a table may be forged.
    """
    try:
        public = signing_keys.opened(session, master_keys, generation.key_id).public
        found = checkpoints.read(note, VerifierKey.ed25519(generation.origin, public.raw))
    except (LookupError, CannotOpen, Malformed, Unverified) as error:
        raise LogDamaged(
            f"The checkpoint at {size} is not one that the log signed: {error}"
        ) from None
    if found.size != size:
        raise LogDamaged(f"The checkpoint at {size} says that it is of {found.size}.")
    return found


def walk(
    session: Session, last: Published, seen: Leaves, sizes: Iterable[int], deadline: Deadline
) -> dict[int, bytes]:
    """Read the whole tree of a checkpoint, show its leaves to `seen`, return the roots at `sizes`.

    The results of `seen` hold only once this returns. Raises `LogDamaged`, `TakesLonger`.
    """
    size = last.checkpoint.size
    before = last.generation.predecessor
    reading = Walk(session, last.generation, size, sizes)
    for first, bundle, data in reading.bundles(deadline):
        if first == 0 and before is not None and data[0] != leaves.LogSuccessor(before).data:
            raise LogDamaged(f"The first leaf of {last.generation.origin} is not its predecessor.")
        seen.take(first, bundle, data)
    seen.settle()
    wrong = reading.wrong_tile
    if reading.roots[size] != last.checkpoint.root:
        # Tiles are written with their entries: the first pair that differs is the place.
        where = "in no entry that differs from its tile"
        if wrong is not None:
            where = wrong._replace(level=wrong.level or ENTRIES).path
        raise LogDamaged(
            f"The leaves give another root than was signed at {size}: {where}. {MENDED_BY}"
        )
    if wrong is not None:
        raise LogDamaged(f"The stored {wrong.path} is not what the leaves give. {MENDED_BY}")
    return reading.roots


def older(
    session: Session, master_keys: MasterKeys, newest: Generation
) -> Iterator[tuple[Published | None, Checkpoint]]:
    """Yield the logs that went before, newest first: what is left of each, and how it ended."""
    after: Generation | None = newest
    while after is not None and after.predecessor is not None:
        found = generations.numbered(session, after.number - 1)
        last = None if found is None else signed(session, master_keys, found)
        yield last, after.predecessor
        after = found
