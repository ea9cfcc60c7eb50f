"""The published log, as far as its signatures, the head outside and others' statements confirm it.

Of timestamps and cosignatures the newest of each are verified, or all: the log of then grew into
the present one.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from cryptography.x509 import Certificate
from sqlalchemy.orm import Session

from app.clock import rfc3339
from app.core import signing_keys
from app.core.anchoring.evidence import Voucher
from app.core.log import generations, head_guard, proofs, publication
from app.core.log.generations import Generation
from app.core.log.head_store import HeadStore
from app.core.log.publication import Published
from app.database import cursor
from app.errors import LogDamaged, LogRolledBack, OlderStampDamaged
from app.evidence import timestamps
from app.evidence.timestamps import NotStamped
from app.ledger import notes
from app.ledger.notes import Checkpoint, Malformed, Note, Signature, Unverified, VerifierKey
from app.ledger.policy import Policy
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


# A cosignature on a candidate says nothing about a published checkpoint.
_PLACES = """
SELECT generation, size FROM {table} AS stated WHERE generation <= %s
   AND NOT EXISTS (SELECT FROM checkpoints AS c
                    WHERE c.generation = stated.generation AND c.size = stated.size
                      AND c.note IS NULL AND c.unpublished_note IS NOT NULL)
 GROUP BY generation, size ORDER BY generation DESC, size DESC
"""
_NOTE = "SELECT note FROM checkpoints WHERE generation = %s AND size = %s"
_LINES = """
SELECT line FROM checkpoint_cosignatures WHERE generation = %s AND size = %s ORDER BY name
"""
_STAMP = """
SELECT response, tsa_chain FROM checkpoint_timestamps
 WHERE generation = %s AND size = %s
"""

# The number of a log, and a size of it or a leaf's index.
CheckpointKey = tuple[int, int]

# What is answered where they were not verified: from the newest anchor on.
NOT_VERIFIED: dict[str, Any] = dict.fromkeys(
    ("anchored_by", "timestamps", "timestamps_unverified", "newest_timestamp", "cosignatures")
)


@dataclass(frozen=True)
class Trust:
    """The roots of trusted timestamp authorities, with intermediates, and the trusted witnesses.

    Each timestamp is verified by the certificates stored with it. That shows only that it belongs
    to its checkpoint: one that leads to none of the trusted certificates proves nothing. Without a
    policy no cosignature is verified.
    """

    certificates: tuple[Certificate, ...] = ()
    policy: Policy | None = None


class Stamps:
    """The timestamps and cosignatures of published checkpoints, as far as they were verified."""

    def __init__(self, trust: Trust) -> None:
        self._trust = trust
        self.timestamps = 0
        self.unverified = 0
        self.cosignatures = 0
        self.witnessed: CheckpointKey | None = None
        self.newest: tuple[CheckpointKey, datetime] | None = None

    def check(
        self, session: Session, master_keys: MasterKeys, logs: Iterable[Published], *, full: bool
    ) -> None:
        """Verify the newest of each kind, or with `full` all, over checkpoints of these logs.

        Raises `LogDamaged` for what does not hold, `OlderStampDamaged` if only `full` reads it.
        """
        by_number = {each.generation.number: each for each in logs}
        newest = max(by_number, default=0)
        stamped = _places(session, "checkpoint_timestamps", newest, full=full)
        cosigned = _places(session, "checkpoint_cosignatures", newest, full=full)
        # In their order, so the last of each kind that is found good is the newest.
        for place in sorted({*stamped, *cosigned}):
            last = by_number.get(place[0])
            if last is None:
                raise LogDamaged(f"Log {place[0]} has no published checkpoint that grew out of it.")
            row = cursor(session).execute(_NOTE, place).fetchone()
            note = b"" if row is None or row[0] is None else bytes(row[0])
            with _older_unless(place in (*stamped[:1], *cosigned[:1])):
                found = read(session, master_keys, last.generation, place[1], note)
                require_root(session, last, found)
            if place in stamped:
                with _older_unless(place == stamped[0]):
                    self._check_stamp(session, place, note)
            if place in cosigned:
                with _older_unless(place == cosigned[0]):
                    self._check_lines(session, place, Note.parse(note))

    def _check_stamp(self, session: Session, place: CheckpointKey, note: bytes) -> None:
        row = cursor(session).execute(_STAMP, place, binary=True).fetchone()
        response, chain = row or (b"", "")
        try:
            own = timestamps.read_certificates(chain.encode())
            moment = timestamps.verify(response, note, own).gen_time
        except (NotStamped, ValueError) as error:
            raise LogDamaged(f"The timestamp over size {place[1]} does not hold: {error}") from None
        try:
            timestamps.verify(response, note, self._trust.certificates)
        except NotStamped:
            # Of an authority that is no longer trusted: a valid timestamp that proves nothing.
            self.unverified += 1
            return
        self.timestamps += 1
        self.newest = (place, moment)

    def _check_lines(self, session: Session, place: CheckpointKey, note: Note) -> None:
        policy = self._trust.policy
        if policy is None:
            return
        rows = cursor(session).execute(_LINES, place).fetchall()
        try:
            whole = note.with_signatures([Signature.parse(row[0]) for row in rows])
            signed = whole.signed_by(each.key for each in policy.witnesses)
        except (Malformed, Unverified) as error:
            raise LogDamaged(f"A cosignature on size {place[1]} does not hold: {error}") from None
        self.cosignatures += len(signed)
        if policy.is_met_by({each.key for each in signed}):
            self.witnessed = place

    def represent(self, leaf: CheckpointKey | None) -> dict[str, Any]:
        """Return what was verified, as it is answered.

        `leaf` is the newest anchor's: the number of its log, and its index there. A statement about
        a log that ended says nothing of leaves in its successor.
        """
        by = [] if leaf is None else [Voucher.LOG]
        if leaf is not None and _covers(self.newest and self.newest[0], leaf):
            by.append(Voucher.TIMESTAMPS)
        if leaf is not None and _covers(self.witnessed, leaf):
            by.append(Voucher.WITNESSES)
        newest = self.newest and {"size": self.newest[0][1], "at": rfc3339(self.newest[1])}
        return {
            "anchored_by": by,
            "timestamps": self.timestamps,
            "timestamps_unverified": self.unverified,
            "newest_timestamp": newest,
            "cosignatures": self.cosignatures,
        }


def _places(session: Session, table: str, generation: int, *, full: bool) -> list[CheckpointKey]:
    """Return which checkpoints have one, newest first; without `full` that alone."""
    query = _PLACES.format(table=table) + ("" if full else " LIMIT 1")
    rows = cursor(session).execute(query.encode(), (generation,)).fetchall()
    return [(row[0], row[1]) for row in rows]


@contextmanager
def _older_unless(newest: bool) -> Iterator[None]:
    try:
        yield
    except LogDamaged as error:
        if newest:
            raise
        raise OlderStampDamaged(error.detail) from None


def _covers(stated: CheckpointKey | None, leaf: CheckpointKey) -> bool:
    return stated is not None and stated[0] == leaf[0] and stated[1] > leaf[1]
