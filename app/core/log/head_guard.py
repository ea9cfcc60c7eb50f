"""Compares the database with the head outside it (rollback detection), and moves the head on.

Nothing is signed unless the database holds the tree of the head; otherwise it is a copy, or was
restored to an earlier moment. A database that holds leaves, tiles or checkpoint of that tree is
damaged, not rolled back: they are committed together.
"""

import structlog
from sqlalchemy.orm import Session

from app.core.log import generations, publication, tile_rows
from app.core.log.generations import Generation
from app.core.log.head_store import HeadStore
from app.core.log.publication import Prepared, Published
from app.database import Database
from app.errors import Conflict, HeadOfAnother, LogDamaged, LogHeadLost, LogRolledBack
from app.ledger.notes import Checkpoint, Malformed

_log = structlog.get_logger(__name__)


def advance(database: Database, store: HeadStore, work: Prepared) -> bool:
    """Make `work` the head; return whether it is, False when others have gone on from it.

    Asks the store outside any transaction. Raises `LogHalted` where nothing may be signed.
    """
    head = store.read()
    new = text(work.checkpoint)
    if head not in [text(each) for each in (work.checkpoint, work.previous) if each is not None]:
        try:
            with database.across_tenants() as session:
                generation = generations.newest(session)
                if generation is None or generation.number != work.generation.number:
                    return False
                found = judge(session, generation, head)
        except LogHeadLost:
            # Another may have kept the first one since it was read.
            if head is not None or store.read() is None:
                raise
            return False
        if found is not None and found.origin == generation.origin:
            if found.size > work.checkpoint.size:
                return False
            if found.size < work.checkpoint.size:
                size = work.checkpoint.size
                _log.warning("log_head_advanced", head=found.size, published=size)
    return store.swap(head, new)


def judge(session: Session, generation: Generation, head: bytes | None) -> Checkpoint | None:
    """Return the head as a checkpoint that this database may go on from; None for no head yet.

    Raises `LogRolledBack`, `LogHeadLost`, or `LogDamaged` where the head was published from this
    database and what is stored of it is not that tree.
    """
    if head is None:
        if generation.head_kept:
            raise LogHeadLost(
                "No head is at LOG_HEAD_URL, although one was kept: put it back. Only if this is "
                "the newest database for certain, have its own head kept: `app.manage log adopt`."
            )
        return None
    found = read(head)
    if found == generation.predecessor and publication.newest(session, generation) is None:
        return found
    if found.origin == generation.origin and _holds(session, generation, found):
        return found
    raise rolled_back(session, generation, found)


def rolled_back(session: Session, generation: Generation, head: Checkpoint) -> LogRolledBack:
    """Return the error that says that this database is not the one the head was published from."""
    if not generations.is_one_series(head.origin, generation.origin):
        return HeadOfAnother(_of_another(generation, head))
    ours = publication.stored(session, generation)
    return LogRolledBack(
        f"Size {head.size} of {head.origin} was published, and this database does not hold it "
        f"(it holds {ours.size} of {ours.origin}): it was restored to an earlier moment, or is a "
        "copy. Restore the newest one, or begin a successor: `app.manage log succeed`."
    )


def require_own(generation: Generation, head: Checkpoint) -> None:
    """Raise `Conflict` for a head of a log that is neither this one nor of its series."""
    if not generations.is_one_series(head.origin, generation.origin):
        raise Conflict(f"{_of_another(generation, head)} (To end this log for that one: --force.)")


def _of_another(generation: Generation, head: Checkpoint) -> str:
    return (
        f"LOG_HEAD_URL holds the head of another log, {head.origin}, and this one is "
        f"{generation.origin}: two services share it. Set LOG_HEAD_URL to where this log's head is "
        "kept, for each log a place of its own."
    )


def read(head: bytes) -> Checkpoint:
    """Read a head. Raises `LogHeadLost` for what is none."""
    try:
        return Checkpoint.parse(head.decode())
    except (Malformed, UnicodeDecodeError):
        raise LogHeadLost(
            "What is at LOG_HEAD_URL is no checkpoint: put the head back that was there."
        ) from None


def check_stored(session: Session, last: Published) -> None:
    """Hold the tiles at the edge of the tree against a checkpoint, and that to its signature.

    Raises `LogDamaged`. Costs some hundred hashes, however large the log is; what lies behind the
    edge is checked as it is read.
    """
    last.intact()
    if tile_rows.root(session, last.generation, last.checkpoint.size) != last.checkpoint.root:
        raise _damaged(last.checkpoint, "the tiles at its edge are not those of that tree")


def _holds(session: Session, generation: Generation, head: Checkpoint) -> bool:
    """Say whether the stored tree is the head's or grew out of it. Raises `LogDamaged`."""
    row = publication.row(session, generation, head.size)
    recorded = None if row is None else row.checkpoint.root
    try:
        by_tiles = tile_rows.root(session, generation, head.size)
    except LogDamaged:
        by_tiles = None
    if by_tiles != head.root:
        if recorded == head.root:
            raise _damaged(head, "the tiles at its edge are not those of that tree")
        return False
    # A copy of this database may have published a size between two of its own.
    is_between = recorded is None and head.size < publication.stored(session, generation).size
    if recorded != head.root and not is_between:
        raise _damaged(head, "its checkpoint is missing or was changed")
    return True


def _damaged(published: Checkpoint, how: str) -> LogDamaged:
    return LogDamaged(
        f"Size {published.size} of {published.origin} was published from this database, and {how}: "
        f"it was damaged. {publication.MENDED_BY}"
    )


def text(checkpoint: Checkpoint) -> bytes:
    """Return a checkpoint as a head."""
    return checkpoint.text.encode()
