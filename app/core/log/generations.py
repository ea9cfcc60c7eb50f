"""The generations of the log, and the lock of its writers.

A database restored to an earlier moment cannot continue its log: it begins a successor, with
another origin and key (`app/core/log/succession.py`). The newest generation is the log. A
successor needs an appointment, a seal under MASTER_KEYS, so the database's owner alone cannot begin
one.
"""

import re
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from app.core import signing_keys
from app.core.signing_keys import Purpose
from app.database import Database, Tx, cursor
from app.errors import LogDamaged
from app.ledger.merkle import EMPTY_ROOT
from app.ledger.notes import Checkpoint, VerifierKey
from app.lib.crypto.sealing import CannotOpen, KeyMissing, MasterKeys

FIRST = 1

# Successors of `log` are called `log/2`, `log/3` and so on.
_COUNTED = re.compile(r"(.+)/([1-9][0-9]{0,8})")


@dataclass(frozen=True)
class Generation:
    """One log; `trouble` is the slug of what halted it, if anything did.

    `public_key` is the 32 bytes of the key named `key_id`, as the database has them.
    """

    number: int
    origin: str
    key_id: str
    predecessor: Checkpoint | None
    head_kept: bool
    trouble: str | None
    appointment: bytes | None
    public_key: bytes

    @property
    def verifier_key(self) -> VerifierKey:
        """The key (vkey) that verifies its checkpoints."""
        return VerifierKey.ed25519(self.origin, self.public_key)


_COLUMNS = """
generation, origin, key_id, predecessor, head_kept, trouble, appointment,
(SELECT public_key FROM signing_keys AS k WHERE k.key_id = log_generations.key_id)
"""
_NEWEST = f"SELECT {_COLUMNS} FROM log_generations ORDER BY generation DESC LIMIT 1"
_NUMBERED = f"SELECT {_COLUMNS} FROM log_generations WHERE generation = %s"
_LOCK = f"""
SELECT {_COLUMNS} FROM log_generations
 WHERE generation = (SELECT max(generation) FROM log_generations) FOR NO KEY UPDATE
"""
# An ORDER BY that only the small index serves: the planner must never read the whole table here.
_STATE = """
SELECT g.trouble,
       (SELECT id FROM log_leaves WHERE leaf_index IS NULL ORDER BY id LIMIT 1) IS NOT NULL
       OR (SELECT leaf_index FROM log_leaves
            WHERE generation < g.generation AND leaf_index IS NOT NULL
            ORDER BY generation, leaf_index LIMIT 1) IS NOT NULL
       OR EXISTS (SELECT FROM checkpoints AS c
                   WHERE c.generation = g.generation AND c.note IS NULL) AS waits
  FROM (SELECT generation, trouble FROM log_generations ORDER BY generation DESC LIMIT 1) AS g
"""
# A log that has not begun waits for it.
IS_DUE = f"SELECT NULL::uuid WHERE coalesce((SELECT waits FROM ({_STATE}) AS log), true)"
"""A query for a row if something waits for the log."""


@dataclass(frozen=True)
class LogState:
    """Whether something waits for the log, and what halted it."""

    waits: bool
    trouble: str | None


def load_state(database: Database) -> LogState:
    """Say in one cheap statement whether anything is to be done; a log not begun waits for it."""
    found = database.ask(_STATE, ())
    return LogState(waits=True, trouble=None) if found is None else LogState(found[1], found[0])


def newest(tx: Tx) -> Generation | None:
    """Return the log, if it has begun."""
    return _read(cursor(tx).execute(_NEWEST.encode()).fetchone())


def numbered(tx: Tx, number: int) -> Generation | None:
    """Return one generation by its number."""
    return _read(cursor(tx).execute(_NUMBERED.encode(), (number,)).fetchone())


def lock(session: Session, *, wait: bool) -> Generation | None:
    """Lock the log against everyone else who writes to it; None when it has not begun.

    Without `wait` also None when it is locked by another; with it, raises what a lock timeout does.
    """
    suffix = "" if wait else " SKIP LOCKED"
    locked = _read(cursor(session).execute(f"{_LOCK}{suffix}".encode()).fetchone())
    # A successor may have begun while this waited; its row was not to be seen then.
    return locked if locked == newest(session) else None


def begin(session: Session, master_keys: MasterKeys, origin: str) -> None:
    """Begin the first generation, its empty tree prepared; of several at once one does."""
    signer = signing_keys.current(session, master_keys, Purpose.LOG)
    cur = cursor(session)
    cur.execute(
        "INSERT INTO log_generations (generation, origin, key_id) VALUES (%s, %s, %s)"
        " ON CONFLICT DO NOTHING",
        (FIRST, origin, signer.public.id),
    )
    if cur.rowcount:
        cur.execute(
            "INSERT INTO checkpoints (generation, size, root) VALUES (%s, 0, %s)",
            (FIRST, EMPTY_ROOT),
        )


def next_origin(origin: str) -> str:
    """Return what a log's successor is called: `log`, then `log/2`, `log/3` and so on."""
    counted = _COUNTED.fullmatch(origin)
    return f"{origin}/2" if counted is None else f"{counted[1]}/{int(counted[2]) + 1}"


def is_one_series(origin: str, other: str) -> bool:
    """Say whether two origins are of one log and its successors, by their names."""
    first, second = (_COUNTED.sub(r"\1", each) for each in (origin, other))
    return first == second


def appoint(
    master_keys: MasterKeys, number: int, origin: str, key_id: str, old: Checkpoint
) -> bytes:
    """Return the seal of a successor: generation `number`, of the log that ended at `old`."""
    return master_keys.seal(_appointment(origin, key_id, old), identity(number))


def require_appointed(master_keys: MasterKeys, generation: Generation) -> None:
    """Raise `LogDamaged` for a successor without a valid appointment under MASTER_KEYS.

    The first generation needs no seal: another one of its name contradicts the head.
    """
    number, old = generation.number, generation.predecessor
    if number == FIRST and old is None:
        return
    try:
        appointed = master_keys.open(generation.appointment or b"", identity(number))
    except KeyMissing as error:
        raise LogDamaged(
            f"The appointment of {generation.origin} in log_generations cannot be read: {error} "
            "Put that key back."
        ) from None
    except CannotOpen:
        appointed = b""
    if old is None or appointed != _appointment(generation.origin, generation.key_id, old):
        raise LogDamaged(
            f"{generation.origin} is no successor that `app.manage log succeed` began, or its row "
            "in log_generations was changed: something else wrote to the database."
        )


def _appointment(origin: str, key_id: str, old: Checkpoint) -> bytes:
    return f"{origin}\n{key_id}\n{old.text}".encode()


def identity(number: int) -> str:
    """Name the place of an appointment, for which it is sealed."""
    return f"log_generations/{number}/appointment"


def mark(session: Session, number: int, *, head_kept: bool, trouble: str | None) -> None:
    """Note how a generation is doing; writes only what changes."""
    cursor(session).execute(
        "UPDATE log_generations SET head_kept = head_kept OR %(kept)s, trouble = %(trouble)s"
        " WHERE generation = %(number)s AND (trouble IS DISTINCT FROM %(trouble)s"
        "       OR %(kept)s AND NOT head_kept)",
        {"kept": head_kept, "trouble": trouble, "number": number},
    )


def _read(row: tuple[Any, ...] | None) -> Generation | None:
    if row is None:
        return None
    number, origin, key_id, predecessor, head_kept, trouble, appointment, public_key = row
    old = None if predecessor is None else Checkpoint.parse(predecessor)
    return Generation(
        number, origin, key_id, old, head_kept, trouble, appointment, public_key or b""
    )
