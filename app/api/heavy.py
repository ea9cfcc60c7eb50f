"""Room for what is large: few at once in a process, or all other requests wait for them.

A body or a bundle of megabytes takes seconds of Python's one lock, and hundreds of megabytes while
it is read. Whoever finds no room within some seconds is asked to come back.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import BoundedSemaphore

from app.errors import Busy

LARGE = 1024 * 1024
AT_ONCE = 2
_WAIT_SECONDS = 10.0

_room = BoundedSemaphore(AT_ONCE)


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """Wait for room if `size` (bytes) is large, and hold it; raises `Busy` after ten seconds."""
    if size <= LARGE:
        yield
        return
    if not _room.acquire(timeout=_WAIT_SECONDS):
        raise Busy("Too many large records are being read or written; try again in a moment.")
    try:
        yield
    finally:
        _room.release()
