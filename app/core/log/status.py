"""The log's status, for operators: `read` it, or have it as `lines`."""

from collections.abc import Iterator
from dataclasses import dataclass

from app.clock import rfc3339
from app.core.log import generations, head_guard, publication
from app.core.log.generations import Generation
from app.core.log.head_store import HeadStore
from app.core.log.publication import Published
from app.database import Database, cursor
from app.errors import LogHalted
from app.ledger.notes import Checkpoint

NO_HEAD = (
    "unset: a rollback of the database, or a lost end of its history, is found only by witnesses, "
    "timestamps, and heads or sequence numbers that someone kept"
)

_WAITING = """
SELECT (SELECT count(*) FROM log_leaves WHERE leaf_index IS NULL)
     + (SELECT count(*) FROM log_leaves WHERE generation < %s AND leaf_index IS NOT NULL)
"""


@dataclass(frozen=True)
class LogStatus:
    """The log at one moment; `generation` is None before it has begun.

    `head` is the one kept outside, or the problem with it; None without one. `tree` is the problem
    with what is stored of the newest checkpoint. `candidate` waits for its quorum.
    """

    has_store: bool
    head: Checkpoint | LogHalted | None
    generation: Generation | None = None
    published: Published | None = None
    tree: LogHalted | None = None
    candidate: Published | None = None
    waiting: int = 0

    @property
    def size(self) -> int:
        """How many leaves are published."""
        return 0 if self.published is None else self.published.checkpoint.size


def read(database: Database, store: HeadStore | None) -> LogStatus:
    """Return the status. Asks the store outside any transaction."""
    head: Checkpoint | LogHalted | None = None
    kept = tree = None
    try:
        kept = None if store is None else store.read()
    except LogHalted as error:
        head = error
    with database.across_tenants() as session:
        generation = generations.newest(session)
        if generation is None:
            return LogStatus(store is not None, head)
        last = publication.newest(session, generation)
        candidate = publication.candidate(session, generation)
        ((waiting,),) = cursor(session).execute(_WAITING, (generation.number,)).fetchall()
        try:
            if store is not None and head is None:
                head = head_guard.judge(session, generation, kept)
        except LogHalted as error:
            head = error
        try:
            if last is not None:
                head_guard.check_stored(session, last)
        except LogHalted as error:
            tree = error
    return LogStatus(store is not None, head, generation, last, tree, candidate, waiting)


def lines(now: LogStatus) -> Iterator[str]:
    """Yield what there is to know, a line each."""
    if now.generation is None:
        yield "the log has not begun: the first integration begins it"
        return
    yield f"origin: {now.generation.origin} (generation {now.generation.number})"
    yield f"key: {now.generation.verifier_key}"
    yield f"published: {'nothing' if now.published is None else f'{now.size} leaves'}"
    if now.candidate is not None:
        at, size = now.candidate.signed_at, now.candidate.checkpoint.size
        signed = "" if at is None else f", signed at {rfc3339(at)}"
        yield f"candidate: {size} leaves{signed}: published once the quorum has cosigned it"
    yield f"waiting: {now.waiting} leaves"
    if isinstance(now.head, LogHalted):
        yield f"head: {now.head.slug}: {now.head.detail}"
    elif now.head is not None:
        yield f"head: in order, {now.head.size} leaves"
    else:
        yield f"head: {'none yet' if now.has_store else NO_HEAD}"
    if now.tree is not None:
        yield f"tree: {now.tree.slug}: {now.tree.detail}"
    else:
        whole = "in order at its edge (`log rebuild --check` reads all of it)"
        yield f"tree: {'nothing published' if now.published is None else whole}"
    if now.generation.trouble is not None:
        yield f"halted: {now.generation.trouble}"
