"""Long polling for a durable job: few requests at once, without transaction or connection.

A waiting request holds one thread of the web process. A quarter of a process's default threads may
wait, and half as many more for callers without a key; others are told to retry at once. After any
wait the request is admitted again.
"""

import time
from collections.abc import Callable
from threading import BoundedSemaphore

from flask import request

from app.api.http import admission
from app.lib.gateway.gateway import CAN_WAIT
from app.lib.gateway.streams import Waiting

AT_ONCE = 4
AT_ONCE_WITHOUT_KEY = 2
# Seconds between two polls: few at first, since most packs take some milliseconds.
_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 0.5
_GROWS_BY = 1.5

_room = BoundedSemaphore(AT_ONCE)
# Separate, so that callers without a key never take the places of callers with one.
_room_without_key = BoundedSemaphore(AT_ONCE_WITHOUT_KEY)


def wait_for_answer(ready: Callable[[], bool], seconds: float) -> None:
    """Wait until `ready()`, in a request without a body that has done nothing yet.

    Behind the gateway it raises `Waiting` once: the gateway holds no thread meanwhile and then
    calls the view again. On another server the thread waits in `wait_until`.
    """
    can_wait = request.environ.get(CAN_WAIT)
    if can_wait:
        raise Waiting(ready, seconds)
    if can_wait is None:
        wait_until(ready, seconds)


def wait_until(settled: Callable[[], bool], seconds: float, *, with_key: bool = True) -> bool:
    """Poll until `settled()` is true, for at most `seconds`; return whether it polled.

    Returns False at once if too many requests wait here. Raises what refuses the caller by then.
    """
    room = _room if with_key else _room_without_key
    if seconds <= 0 or not room.acquire(blocking=False):
        return False
    try:
        _poll(settled, time.monotonic() + seconds)
    finally:
        room.release()
    admission.again()
    return True


def _poll(settled: Callable[[], bool], until: float) -> None:
    pause = _FIRST_PAUSE
    while not settled():
        left = until - time.monotonic()
        if left <= 0:
            return
        time.sleep(min(pause, left))
        pause = min(pause * _GROWS_BY, _LONGEST_PAUSE)
