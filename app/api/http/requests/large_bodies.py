"""Large work waits for a place, and is refused at once where enough waits.

A large body or bundle holds Python's one lock for long, and every other request waits for that.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from flask import request

from app import metrics
from app.api.http.services import services
from app.errors import Busy
from app.lib.gateway.gateway import REFUSED, REFUSED_BEFORE

LARGE = 64 * 1024


@contextmanager
def room_for(size: int, whose: object) -> Iterator[None]:
    """Hold a place in this process's room if `size` (bytes) is large; raises `Busy`.

    `whose` is the tenant's id.
    """
    if size <= LARGE:
        yield
        return
    here = services()
    try:
        here.large.enter(whose)
    except Busy as full:
        raise refused("large_work", full.detail) from None
    try:
        yield
    finally:
        here.large.leave(whose)


def refused(reason: str, detail: str) -> Busy:
    """Count a refusal; a caller that repeats the request at once finds it in `require_patience`."""
    services().tally.add(metrics.WEB_REFUSED, reason)
    request.environ[REFUSED] = detail
    return Busy(detail)


def require_patience() -> None:
    """Raise `Busy` for a request that repeats one refused a moment ago."""
    detail = request.environ.get(REFUSED_BEFORE)
    if detail is not None:
        services().tally.add(metrics.WEB_REFUSED, "early_retry")
        raise Busy(detail)
