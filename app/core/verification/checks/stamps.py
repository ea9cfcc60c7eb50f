"""Verifies timestamps and cosignatures of published checkpoints: the newest of each, or all.

The signature of each checkpoint is verified, and its root recomputed from the log's leaves: so the
log of then grew into the present one.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from cryptography.x509 import Certificate
from sqlalchemy.orm import Session

from app.clock import rfc3339
from app.core.anchoring.evidence import Voucher
from app.core.log.generations import Generation
from app.core.verification.checks import published_log
from app.core.verification.time_budget import Deadline
from app.database import cursor
from app.errors import LogDamaged, OlderStampDamaged
from app.ledger.notes import Malformed, Note, Signature, Unverified
from app.ledger.policy import Policy
from app.lib.crypto import timestamps
from app.lib.crypto.sealing import MasterKeys
from app.lib.crypto.timestamps import NotStamped

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
SELECT response, tsa_chain, gen_time FROM checkpoint_timestamps
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
    """The timestamps and cosignatures that are to be verified, and what was found."""

    def __init__(self, session: Session, trust: Trust, generation: int, *, full: bool) -> None:
        """Find what there is up to a generation: the newest of each kind, or with `full` all."""
        self._trust = trust
        limit = "" if full else " LIMIT 1"
        self._stamped = _places(session, "checkpoint_timestamps", generation, limit)
        self._cosigned = _places(session, "checkpoint_cosignatures", generation, limit)
        self.timestamps = 0
        self.unverified = 0
        self.cosignatures = 0
        self.witnessed: CheckpointKey | None = None
        self.newest: tuple[CheckpointKey, datetime] | None = None

    def sizes(self, generation: int) -> Iterable[int]:
        """Return the sizes of a log whose roots `check` needs."""
        return {size for number, size in self._stamped | self._cosigned if number == generation}

    def check(
        self,
        session: Session,
        master_keys: MasterKeys,
        generation: Generation,
        roots: Mapping[int, bytes],
        deadline: Deadline,
    ) -> None:
        """Verify what is of this log.

        Raises `LogDamaged` for what does not hold, `OlderStampDamaged` if only `full` reads it.
        """
        stamped, cosigned = (max(of, default=None) for of in (self._stamped, self._cosigned))
        for size in sorted(self.sizes(generation.number)):
            deadline.check()
            place = (generation.number, size)
            row = cursor(session).execute(_NOTE, place).fetchone()
            note = b"" if row is None or row[0] is None else bytes(row[0])
            with _older_unless(place in (stamped, cosigned)):
                found = published_log.read(session, master_keys, generation, size, note)
                if roots.get(size) != found.root:
                    raise LogDamaged(f"The log did not grow out of what was published at {size}.")
            if place in self._stamped:
                with _older_unless(place == stamped):
                    self._check_stamp(session, place, note)
            if place in self._cosigned:
                with _older_unless(place == cosigned):
                    self._check_lines(session, place, Note.parse(note))

    def _check_stamp(self, session: Session, place: CheckpointKey, note: bytes) -> None:
        row = cursor(session).execute(_STAMP, place).fetchone()
        response, chain, stated = row or (b"", "", None)
        try:
            moment = timestamps.moment(timestamps.verify(bytes(response), note, _own(chain)))
        except NotStamped as error:
            raise LogDamaged(f"The timestamp over size {place[1]} does not hold: {error}") from None
        # Before 0.2 the row had the time without the fraction of its second.
        if stated not in (moment, moment.replace(microsecond=0)):
            raise LogDamaged(f"The timestamp over size {place[1]} is of {moment}, not of {stated}.")
        # Of an authority that is no longer trusted: a valid timestamp that proves nothing.
        if not self._is_trusted(bytes(response), note):
            self.unverified += 1
            return
        self.timestamps += 1
        if self.newest is None or place > self.newest[0]:
            self.newest = (place, moment)

    def _is_trusted(self, response: bytes, note: bytes) -> bool:
        if not self._trust.certificates:
            return False
        try:
            timestamps.verify(response, note, self._trust.certificates)
        except NotStamped:
            return False
        return True

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
        met = policy.is_met_by({each.key for each in signed})
        if met and (self.witnessed is None or place > self.witnessed):
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


def _places(session: Session, table: str, generation: int, limit: str) -> set[CheckpointKey]:
    query = _PLACES.format(table=table) + limit
    rows = cursor(session).execute(query.encode(), (generation,)).fetchall()
    return {(row[0], row[1]) for row in rows}


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


def _own(chain: str) -> tuple[Certificate, ...]:
    """Read the certificates that were stored with a timestamp."""
    try:
        return timestamps.read_certificates(chain.encode())
    except ValueError:
        raise NotStamped("The certificates stored with it cannot be read.") from None
