"""Candidates: signed checkpoints that only witnesses see (LOG_REQUIRE_QUORUM).

There is one at a time. Its `note` is null until its quorum has cosigned it, so readers of published
checkpoints never see it.
"""

from datetime import datetime

from app.core.log import generations, publication
from app.core.log.generations import Generation
from app.core.log.publication import Published
from app.database import Tx, cursor
from app.ledger.checkpoints import Checkpoint

_CANDIDATE = """
SELECT size, root, unpublished_note FROM checkpoints
 WHERE generation = %s AND note IS NULL AND unpublished_note IS NOT NULL
"""
_SIGNED_AT = "SELECT signed_at FROM checkpoints WHERE generation = %s AND size = %s"


def of(tx: Tx, generation: Generation) -> Published | None:
    """Return a log's candidate; None without one, or for one that the log did not sign."""
    row = cursor(tx).execute(_CANDIDATE, (generation.number,)).fetchone()
    if row is None:
        return None
    checkpoint = Checkpoint(generation.origin, row[0], bytes(row[1]))
    found = Published(generation, checkpoint, bytes(row[2]))
    return found if publication.is_intact(found) else None


def current(tx: Tx) -> Published | None:
    """Return the candidate of the newest generation."""
    generation = generations.newest(tx)
    return None if generation is None else of(tx, generation)


def at(tx: Tx, generation: Generation, size: int) -> Published | None:
    """Return what witnesses are shown of a size: what was published, or is about to be."""
    found = of(tx, generation)
    if found is not None and found.checkpoint.size == size:
        return found
    return publication.at(tx, generation, size)


def signed_at(tx: Tx, candidate: Published) -> datetime | None:
    """Return when a candidate was signed; None if it is none any more."""
    place = (candidate.generation.number, candidate.checkpoint.size)
    row = cursor(tx).execute(_SIGNED_AT, place).fetchone()
    return None if row is None else row[0]
