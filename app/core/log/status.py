"""The log's status, for operators."""

from collections.abc import Iterator

from sqlalchemy.orm import Session

from app.clock import rfc3339
from app.core.log import candidates, generations, publication
from app.core.log.head import head_guard
from app.core.log.publication import Published
from app.core.log.sequencer import Sequencer
from app.database import cursor
from app.errors import LogHalted

NO_HEAD = (
    "unset: a rollback of the database is found only by witnesses, timestamps or heads that "
    "someone kept"
)

_IN_ORDER = "in order at its edge (`log rebuild --check` reads all of it)"

_WAITING = """
SELECT (SELECT count(*) FROM log_leaves WHERE leaf_index IS NULL)
     + (SELECT count(*) FROM log_leaves WHERE generation < %s AND leaf_index IS NOT NULL)
"""


def lines(sequencer: Sequencer) -> Iterator[str]:
    """Yield what there is to know, a line each. Asks the head store outside any transaction."""
    try:
        head = None if sequencer.head is None else sequencer.head.read()
        out_of_reach = None
    except LogHalted as error:
        head, out_of_reach = None, error
    with sequencer.database.across_tenants() as session:
        generation = generations.newest(session)
        if generation is None:
            yield "the log has not begun: the first integration begins it"
            return
        last = publication.newest(session, generation)
        yield f"origin: {generation.origin} (generation {generation.number})"
        yield f"key: {generation.verifier_key}"
        yield f"published: {'nothing' if last is None else f'{last.checkpoint.size} leaves'}"
        candidate = candidates.of(session, generation)
        if candidate is not None:
            yield _candidate(session, candidate)
        row = cursor(session).execute(_WAITING, (generation.number,)).fetchone()
        yield f"waiting: {0 if row is None else row[0]} leaves"
        if sequencer.head is None:
            yield f"head: {NO_HEAD}"
        elif out_of_reach is not None:
            yield f"head: {out_of_reach.slug}: {out_of_reach.detail}"
        else:
            try:
                found = head_guard.judge(session, generation, head)
                yield f"head: {'none yet' if found is None else f'in order, {found.size} leaves'}"
            except LogHalted as error:
                yield f"head: {error.slug}: {error.detail}"
        yield f"tree: {_tree(session, last)}"
        if generation.trouble is not None:
            yield f"halted: {generation.trouble}"


def _candidate(session: Session, candidate: Published) -> str:
    since = candidates.signed_at(session, candidate)
    signed = "" if since is None else f", signed at {rfc3339(since)}"
    size = candidate.checkpoint.size
    return f"candidate: {size} leaves{signed}: published once the quorum has cosigned it"


def _tree(session: Session, last: Published | None) -> str:
    if last is None:
        return "nothing published"
    try:
        head_guard.check_stored(session, last)
    except LogHalted as error:
        return f"{error.slug}: {error.detail}"
    return _IN_ORDER
