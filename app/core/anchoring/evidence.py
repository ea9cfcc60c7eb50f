"""The best evidence for a leaf: which checkpoint that covers it proves most, and what it carries.

Witnesses in a quorum prove more than a timestamp, which proves more than the log alone; of equals
the earliest, since it proves the leaf to be oldest. Proof, timestamp and cosignatures that are
given out together are of one checkpoint.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum, StrEnum

from sqlalchemy.orm import Session

from app.core.log.publication import Published
from app.database import cursor
from app.errors import LogPending
from app.ledger.checkpoints import Checkpoint
from app.ledger.notes import Malformed, Note, Signature, Unverified, VerifierKey
from app.ledger.policy import NONE, Policy, Witness


class Rank(IntEnum):
    """What vouches for a checkpoint, the best last."""

    LOG = 0
    TIMESTAMPED = 1
    WITNESSED = 2


class Voucher(StrEnum):
    """Who vouches for what is anchored: the service's own log, and others for that."""

    LOG = "log"
    TIMESTAMPS = "timestamps"
    WITNESSES = "witnesses"


_SAID = {
    (Voucher.LOG,): "The service's own log alone: nobody outside vouches for it. Set TSA_URL or"
    " WITNESS_POLICY, or keep checkpoints yourself.",
    (Voucher.LOG, Voucher.TIMESTAMPS): "The service's own log, stamped by a timestamp authority.",
    (Voucher.LOG, Voucher.WITNESSES): "The service's own log, cosigned by witnesses.",
    tuple(Voucher): "The service's own log, stamped by a timestamp authority and cosigned by"
    " witnesses.",
}


def vouchers(*, timestamps: bool, policy: Policy | None) -> tuple[Voucher, ...]:
    """Return who vouches for the log of this installation as it is set up now."""
    asked = policy is not None and any(each.url is not None for each in policy.witnesses)
    wanted = {Voucher.LOG: True, Voucher.TIMESTAMPS: timestamps, Voucher.WITNESSES: asked}
    return tuple(each for each, is_there in wanted.items() if is_there)


def said_of(those: tuple[Voucher, ...]) -> str:
    """Say in a sentence who vouches."""
    return _SAID[those]


@dataclass(frozen=True)
class Timestamp:
    """An RFC 3161 response, the certificates behind it (PEM, root included), and its genTime."""

    response: bytes
    tsa_chain: str
    gen_time: datetime


@dataclass(frozen=True)
class Evidence:
    """A published checkpoint and what others say of it.

    `published.note` has the log's own signature only; `cosignatures` are note lines, without their
    newline, also of algorithms that are not checked here.
    """

    published: Published
    rank: Rank
    timestamp: Timestamp | None
    cosignatures: tuple[str, ...]


_EARLIEST = """
SELECT size, root, note FROM checkpoints
 WHERE generation = %(generation)s AND size > %(index)s AND note IS NOT NULL
 ORDER BY size LIMIT 1
"""
_STAMPED = """
SELECT size FROM checkpoint_timestamps
 WHERE generation = %(generation)s AND size > %(index)s ORDER BY size LIMIT 1
"""
_AT = "SELECT size, root, note FROM checkpoints WHERE generation = %s AND size = %s"
_TIMESTAMP = """
SELECT response, tsa_chain, gen_time FROM checkpoint_timestamps
 WHERE generation = %s AND size = %s
"""
_LINES = """
SELECT line FROM checkpoint_cosignatures WHERE generation = %s AND size = %s
 ORDER BY created_at, name, key_hash
"""


class Chooser:
    """Chooses for the leaves of one log under one policy; good for one transaction.

    For many leaves ask for the newest first: then no cosignature is looked at twice.
    """

    def __init__(self, session: Session, last: Published, policy: Policy | None) -> None:
        """`last` is the log's last checkpoint: no evidence beyond it is seen."""
        self._session = session
        self._last = last
        self._policy = policy
        self._quorum = None if policy is None else _Quorum.of(policy)
        # The last answer: for leaves from this one on, the first size that has a quorum.
        self._known: tuple[int, int | None] = (last.checkpoint.size, None)

    def best(self, index: int) -> Evidence:
        """Return the best evidence for the leaf `index`. Raises `LogPending` if none covers it."""
        if index >= self._last.checkpoint.size:
            raise LogPending("No published checkpoint covers this leaf yet.")
        witnessed = self._witnessed(index)
        if witnessed is not None:
            return self._evidence(self._at(witnessed), Rank.WITNESSED)
        values = {"generation": self._last.generation.number, "index": index}
        stamped = cursor(self._session).execute(_STAMPED, values).fetchone()
        if stamped is not None:
            return self._evidence(self._at(stamped[0]), Rank.TIMESTAMPED)
        earliest = cursor(self._session).execute(_EARLIEST, values).fetchone()
        published = self._last if earliest is None else self._published(earliest)
        return self._evidence(published, Rank.LOG)

    def _witnessed(self, index: int) -> int | None:
        """Return the smallest size beyond `index` whose cosignatures make the quorum."""
        known_from, known = self._known
        if index >= known_from:
            # Asked out of order, or of the same leaf again.
            if known is None or known > index:
                return known
            known_from, known = self._last.checkpoint.size, None
        found = self._first_quorum(index, known_from) if self._quorum else None
        self._known = (index, found or known)
        return self._known[1]

    def _first_quorum(self, index: int, through: int) -> int | None:
        quorum = self._quorum
        while quorum is not None:
            size = quorum.first(self._session, self._last.generation.number, index, through)
            if size is None or self._holds(size):
                return size
            index = size
        return None

    def _holds(self, size: int) -> bool:
        """Whether the stored lines that make a quorum are what witnesses signed."""
        policy = self._policy
        if policy is None:
            return False
        note = Note.parse(self._at(size).note)
        keys = [each.key for each in policy.witnesses]
        signed = {key for line in self._lines(size) if (key := _signed(note.text, line, keys))}
        return policy.is_met_by(signed)

    def _evidence(self, published: Published, rank: Rank) -> Evidence:
        place = (published.generation.number, published.checkpoint.size)
        row = cursor(self._session).execute(_TIMESTAMP, place).fetchone()
        stamp = None if row is None else Timestamp(bytes(row[0]), row[1], row[2])
        return Evidence(published, rank, stamp, tuple(self._lines(published.checkpoint.size)))

    def _lines(self, size: int) -> list[str]:
        place = (self._last.generation.number, size)
        return [row[0] for row in cursor(self._session).execute(_LINES, place).fetchall()]

    def _at(self, size: int) -> Published:
        place = (self._last.generation.number, size)
        row = cursor(self._session).execute(_AT, place).fetchone()
        if row is None:
            raise LookupError(f"There is no checkpoint of size {size}.")
        return self._published(row)

    def _published(self, row: Sequence[object]) -> Published:
        size, root, note = row
        generation = self._last.generation
        assert isinstance(size, int)  # noqa: S101  # a bigint
        assert isinstance(root, bytes)  # noqa: S101  # a bytea
        assert isinstance(note, bytes)  # noqa: S101  # a bytea
        return Published(generation, Checkpoint(generation.origin, size, root), note)


def best(session: Session, last: Published, index: int, policy: Policy | None) -> Evidence:
    """Return the best evidence for one leaf, as `Chooser` does."""
    return Chooser(session, last, policy).best(index)


@dataclass(frozen=True)
class _Quorum:
    """A policy's quorum as a condition on the cosignatures of one checkpoint, in SQL."""

    query: bytes
    values: tuple[object, ...]

    @classmethod
    def of(cls, policy: Policy) -> "_Quorum | None":
        """Write the condition; None for a quorum that asks for nobody."""
        if policy.quorum == NONE:
            return None
        written = {each.name: _cosigned(each) for each in policy.witnesses}
        for group in policy.groups:
            members = [written[name] for name in group.members]
            counted = " + ".join(f"({sql})::int" for sql, _ in members)
            values = tuple(value for _, each in members for value in each)
            written[group.name] = (f"{counted} >= {group.threshold}", values)
        condition, values = written[policy.quorum]
        query = (
            "SELECT size FROM checkpoint_cosignatures"
            " WHERE generation = %s AND size > %s AND size <= %s"
            f" GROUP BY size HAVING {condition} ORDER BY size LIMIT 1"
        )
        return cls(query.encode(), values)

    def first(self, session: Session, generation: int, index: int, through: int) -> int | None:
        """Return the first size beyond `index`, up to `through`, where it is met."""
        values = (generation, index, through, *self.values)
        row = cursor(session).execute(self.query, values).fetchone()
        return None if row is None else int(row[0])


def _cosigned(witness: Witness) -> tuple[str, tuple[object, ...]]:
    # What cannot be checked counts for nothing.
    if not witness.key.checkable:
        return "false", ()
    return "bool_or(name = %s AND key_hash = %s)", (witness.key.name, witness.key.key_hash)


def _signed(text: str, line: str, keys: Sequence[VerifierKey]) -> VerifierKey | None:
    try:
        signature = Signature.parse(line)
        key = next((key for key in keys if key.made(signature)), None)
        return None if key is None else key.verify(text, signature).key
    except (Malformed, Unverified):
        return None
