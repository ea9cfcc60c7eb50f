"""The bulkhead for large bodies: work waits for a place, or is refused if the queue is full.

Work on a large body or bundle holds the GIL for long, and every other request waits for it.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from flask import g

from app import metrics
from app.api.http import admission
from app.api.http.services import services
from app.errors import Busy

LARGE = 64 * 1024


@contextmanager
def room_for(size: int, whose: object, *, unqueued: bool = False) -> Iterator[None]:
    """Hold a place in this process's bulkhead if `size` (bytes) exceeds `LARGE`; raises `Busy`.

    `whose` is the tenant's id. A request that holds a place already takes no second. What is
    `unqueued` is never refused for the length of the queue. Raises what refuses a caller who had to
    wait for the place.
    """
    if size <= LARGE or "in_large_room" in g:
        yield
        return
    here = services()
    try:
        waited = here.large.enter(whose, unqueued=unqueued)
    except Busy as full:
        raise refused("large_work", full.detail) from None
    g.in_large_room = True
    try:
        if waited:
            admission.again()
        yield
    finally:
        del g.in_large_room
        here.large.leave(whose)


def refused(reason: str, detail: str) -> Busy:
    """Count a refusal and return the error."""
    services().tally.add(metrics.WEB_REFUSED, reason)
    return Busy(detail)
