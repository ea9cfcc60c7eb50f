"""Long polling: few requests at once, without transaction or connection.

Behind the gateway a request for an event holds no thread. One for a durable job holds one: a
quarter of the default number may wait, half as many more without a key; others retry. After any
wait the request is admitted again.
"""

import time
from collections import Counter
from collections.abc import Callable
from threading import BoundedSemaphore, Lock
from uuid import UUID

from flask import request

from app.api.http import admission
from app.core.callers import Caller
from app.errors import RateLimited
from app.lib.gateway.gateway import CAN_WAIT
from app.lib.gateway.streams import Waiting

AT_ONCE = 4
AT_ONCE_WITHOUT_KEY = 2
# Seconds between two polls: few at first, since most packs take some milliseconds.
_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 0.5
_GROWS_BY = 1.5

# Waiting behind the gateway holds no thread, but each look is a statement.
OF_A_KEY = 32
OF_A_TENANT = 128

_room = BoundedSemaphore(AT_ONCE)
# Separate, so that callers without a key never take the places of callers with one.
_room_without_key = BoundedSemaphore(AT_ONCE_WITHOUT_KEY)


class _Waiting:
    """The requests of this process that wait behind the gateway, by key and by tenant."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._waiting: Counter[UUID] = Counter()

    def begin(self, caller: Caller) -> Callable[[], None]:
        """Count a request; return what takes it off the count. Raises `RateLimited`."""
        both = ((caller.key_id, OF_A_KEY, "key"), (caller.tenant_id, OF_A_TENANT, "tenant"))
        with self._lock:
            for whose, most, word in both:
                if self._waiting[whose] >= most:
                    raise RateLimited(
                        f"{most} requests of this {word} wait for an answer already; end one "
                        "first, or ask without `wait`.",
                        headers={"Retry-After": "5"},
                    )
            for whose, _, _ in both:
                self._waiting[whose] += 1
        return lambda: self._end(caller)

    def _end(self, caller: Caller) -> None:
        with self._lock:
            for whose in (caller.key_id, caller.tenant_id):
                self._waiting[whose] -= 1
                if not self._waiting[whose]:
                    del self._waiting[whose]


_waiting = _Waiting()


def wait_for_answer(caller: Caller, ready: Callable[[], bool], seconds: float) -> None:
    """Wait until `ready()`, in a request without a body that has done nothing yet.

    Behind the gateway it raises `Waiting` once: the gateway holds no thread meanwhile and then
    calls the view again. On another server the thread waits in `wait_until`. Raises
    `RateLimited`.
    """
    can_wait = request.environ.get(CAN_WAIT)
    if can_wait:
        raise Waiting(ready, seconds, _waiting.begin(caller))
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
