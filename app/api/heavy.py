"""Large work waits for a place, and is refused at once where enough waits.

A large body or bundle holds Python's one lock for long, and every other request waits for that.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from app import metrics
from app.api.services import services
from app.errors import Busy

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
    except Busy:
        here.tally.add(metrics.WEB_REFUSED, "large_work")
        raise
    try:
        yield
    finally:
        here.large.leave(whose)
