"""The bulkhead for large bodies: work waits for a place, or is refused if the queue is full.

Work on a large body or bundle holds the GIL for long, and every other request waits for it.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from flask import request

from app import metrics
from app.api.http import admission
from app.api.http.services import services
from app.errors import Busy
from app.lib.gateway.gateway import REFUSED, REFUSED_BEFORE

LARGE = 64 * 1024


@contextmanager
def room_for(size: int, whose: object) -> Iterator[None]:
    """Hold a place in this process's bulkhead if `size` (bytes) exceeds `LARGE`; raises `Busy`.

    `whose` is the tenant's id. Raises what refuses a caller who had to wait for the place.
    """
    if size <= LARGE:
        yield
        return
    here = services()
    try:
        waited = here.large.enter(whose)
    except Busy as full:
        raise refused("large_work", full.detail) from None
    try:
        if waited:
            admission.again()
        yield
    finally:
        here.large.leave(whose)


def refused(reason: str, detail: str) -> Busy:
    """Count a refusal and return the error; `require_patience` refuses a repeat that comes soon."""
    services().tally.add(metrics.WEB_REFUSED, reason)
    request.environ[REFUSED] = detail
    return Busy(detail)


def require_patience() -> None:
    """Raise `Busy` for a request that repeats a recently refused one."""
    detail = request.environ.get(REFUSED_BEFORE)
    if detail is not None:
        services().tally.add(metrics.WEB_REFUSED, "early_retry")
        raise Busy(detail)
