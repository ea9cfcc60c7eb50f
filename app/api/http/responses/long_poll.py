"""Requests that wait for an answer: few of each caller, without transaction or connection.

Behind the gateway a wait holds no thread, but each look is a statement; on another server it holds
the request's thread. After any wait the request is admitted again.
"""

import time
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from threading import Lock
from typing import TypeAlias
from uuid import UUID

from flask import Response, g, request

from app.api.http import admission
from app.core.callers import Caller
from app.errors import RateLimited
from app.lib.gateway.gateway import WAIT, WAITED, Wait

OF_A_KEY = 32
OF_A_TENANT = 128
# Without a key; apart, so that they never take the places of callers with one.
OF_AN_ADDRESS = 4
KEYLESS_OF_A_TENANT = 32
# Seconds between two looks in a thread: few at first, since most packs take some milliseconds.
_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 0.5
_GROWS_BY = 1.5

# Whom a wait counts for, how many of it may wait at once in a process, and its kind in a word.
Bound: TypeAlias = tuple[Hashable, int, str]

_lock = Lock()
_waiting: "Counter[Hashable]" = Counter()


def bounds(caller: Caller) -> Sequence[Bound]:
    """Return what bounds the waits of a caller."""
    return (caller.key_id, OF_A_KEY, "key"), (caller.tenant_id, OF_A_TENANT, "tenant")


def keyless_bounds(tenant_id: UUID, address: str) -> Sequence[Bound]:
    """Return what bounds the waits for what is a tenant's, without a key."""
    return (
        (("address", address), OF_AN_ADDRESS, "address"),
        (("keyless", tenant_id), KEYLESS_OF_A_TENANT, "tenant"),
    )


def wait(counted: Sequence[Bound], ready: Callable[[], bool], seconds: float) -> Response | None:
    """Wait once until `ready()`, in a request without a body that has done nothing yet.

    Return what the view must answer: the gateway drops it, and makes the request again. None once
    the wait is over. Raises `RateLimited`, and what refuses the caller by then.
    """
    if has_waited():
        return None
    over = _begin(counted)
    if WAIT in request.environ:
        request.environ[WAIT].append(Wait(ready, seconds, over))
        return Response(status=202)
    try:
        _poll(ready, time.monotonic() + seconds)
    finally:
        over()
    admission.again()
    g.waited = True
    return None


def has_waited() -> bool:
    """Say whether this request has waited: it waits once."""
    return WAITED in request.environ or "waited" in g


def _begin(counted: Sequence[Bound]) -> Callable[[], None]:
    """Count a wait; return what takes it off the count."""
    with _lock:
        for whose, most, word in counted:
            if _waiting[whose] >= most:
                raise RateLimited(
                    f"{most} requests of this {word} wait for an answer already; end one first, "
                    "or ask without `wait`.",
                    headers={"Retry-After": "5"},
                )
        _waiting.update(whose for whose, _, _ in counted)

    def over() -> None:
        with _lock:
            for whose, _, _ in counted:
                _waiting[whose] -= 1
                if not _waiting[whose]:
                    del _waiting[whose]

    return over


def _poll(ready: Callable[[], bool], until: float) -> None:
    pause = _FIRST_PAUSE
    while not ready():
        left = until - time.monotonic()
        if left <= 0:
            return
        time.sleep(min(pause, left))
        pause = min(pause * _GROWS_BY, _LONGEST_PAUSE)
