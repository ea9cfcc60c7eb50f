"""The published log, as far as its signatures and the head outside confirm it."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from app.core import signing_keys
from app.core.log import generations, head_guard, proofs, publication
from app.core.log.generations import Generation
from app.core.log.head_store import HeadStore
from app.core.log.publication import Published
from app.errors import LogDamaged, LogRolledBack
from app.ledger import notes
from app.ledger.notes import Checkpoint, Malformed, Unverified, VerifierKey
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


@dataclass(frozen=True)
class Ended:
    """A log that ended: its last checkpoint, and the last one that this database has of it."""

    before: Checkpoint
    last: Published | None


@dataclass(frozen=True)
class Logs:
    """The log's last checkpoint, None before the first one, and the logs before it, newest first.

    While a successor has published nothing, `last` is of the ended log, which holds the heads.
    """

    last: Published | None = None
    ended: tuple[Ended, ...] = ()

    @property
    def published(self) -> list[Published]:
        """The last checkpoints that there are."""
        found = (self.last, *(each.last for each in self.ended))
        return [each for each in found if each is not None]

    def represent(self) -> dict[str, Any] | None:
        """Return what was verified, as it is answered."""
        if self.last is None:
            return None
        return {
            "origin": self.last.checkpoint.origin,
            "size": self.last.checkpoint.size,
            "root": self.last.checkpoint.root.hex(),
            "predecessors": [
                {
                    "origin": each.before.origin,
                    "size": each.before.size,
                    "held": 0 if each.last is None else each.last.checkpoint.size,
                }
                for each in self.ended
            ],
        }


def read_logs(session: Session, master_keys: MasterKeys, outside: Outside) -> Logs:
    """Return the published logs, each signature verified.

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
        return Logs()
    head = head_guard.judge(session, generation, outside.head) if outside.kept else None
    last = _signed(session, master_keys, generation)
    if last and head and head.origin == generation.origin and head.size <= last.checkpoint.size:
        require_root(session, last, head)
    ended: list[Ended] = []
    after: Generation | None = generation
    while after is not None and after.predecessor is not None:
        before = generations.numbered(session, after.number - 1)
        held = None if before is None else _signed(session, master_keys, before)
        # A successor's first checkpoint may wait for witnesses for days.
        if last is None:
            last = held
        else:
            ended.append(Ended(after.predecessor, held))
        after = before
    return Logs(last, tuple(ended))


def _signed(session: Session, master_keys: MasterKeys, generation: Generation) -> Published | None:
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
        found = notes.read_checkpoint(note, VerifierKey.ed25519(generation.origin, public.raw))
    except (LookupError, CannotOpen, Malformed, Unverified) as error:
        raise LogDamaged(
            f"The checkpoint at {size} is not one that the log signed: {error}"
        ) from None
    if found.size != size:
        raise LogDamaged(f"The checkpoint at {size} says that it is of {found.size}.")
    return found


def require_root(session: Session, last: Published, older_one: Checkpoint) -> None:
    """Raise `LogDamaged` unless the published tree grew out of an older checkpoint's."""
    size = older_one.size
    if size > last.checkpoint.size or proofs.root(session, last, size) != older_one.root:
        raise LogDamaged(f"The log did not grow out of what was published at {size}.")
