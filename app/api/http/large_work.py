"""The bulkhead of large requests: they wait for a place, or are refused if the queue is full.

Work on a large body or bundle holds the GIL for long, and every other request waits for it.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from flask import g, request

from app import metrics
from app.api.http import admission
from app.api.http.services import services
from app.errors import Busy
from app.lib.fair_shares import NoShare
from app.lib.gateway.gateway import REFUSED

LARGE = 64 * 1024

NO_PLACE = "Too many large records are being read or written; try again in a moment."


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
    with ExitStack() as held:
        try:
            waited = held.enter_context(services().large.held(whose, unqueued=unqueued))
        except NoShare:
            raise refused("large_work", NO_PLACE) from None
        g.in_large_room = True
        held.callback(g.pop, "in_large_room")
        if waited:
            admission.again()
        yield


def refused(reason: str, detail: str) -> Busy:
    """Count a refusal and return the error."""
    services().tally.add(metrics.WEB_REFUSED, reason)
    request.environ[REFUSED] = True
    return Busy(detail)
