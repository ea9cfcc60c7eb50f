"""The object store: whether it answers, and whether what has expired is erased there."""

from collections.abc import Iterator

from sqlalchemy.orm import Session

from app.core.blobs import store
from app.core.erasure import erasing
from app.core.health.parts import Part, State, failed, ok
from app.database import database_now
from app.errors import Unavailable
from app.settings import Settings

_SEE = "#the-object-store"


def erased(session: Session, settings: Settings) -> Iterator[Part]:
    """Yield what should be gone from the store for an hour, and is not; nothing without a store."""
    since = erasing.late_since(session)
    if since is not None and settings.blob_url is None:
        mend = "set BLOB_URL to the store that has them"
        yield failed("objects are to be erased, and BLOB_URL names no store", mend, see=_SEE)
    elif since is not None and database_now(session) - since > erasing.LATE:
        mend = "bring the store back, or let BLOB_URL's credentials delete: the job tries again"
        reason = "what has expired is not erased"
        yield Part(State.FAILED, reason, mend, _SEE, since=since)


def reached(settings: Settings) -> Iterator[Part]:
    """Yield whether the store answers; nothing without one. With no transaction open."""
    blobs = store.of(settings.blob_url)
    if blobs is None:
        return
    try:
        blobs.check()
    except Unavailable:
        banner = "The object store is away: what lies there cannot be read now."
        mend = "bring the store back; until then bundles go into the database"
        yield Part(State.FAILED, "away", mend, _SEE, banner=banner)
    else:
        yield ok("it answers")
