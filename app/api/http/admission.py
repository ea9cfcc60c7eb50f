"""How a request was admitted, and its waits: after any wait the check is repeated.

A key, session or link may end, and a record's visibility change, while its reader waits. Behind the
gateway a wait holds no thread, but each look is a statement; on another server it holds the
request's thread.
"""

import re
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import TypeAlias
from uuid import UUID

import structlog
from flask import Response, g, request

from app.core.callers import Caller
from app.errors import NotFound, RateLimited, ServiceError, TenantSuspended, Unauthenticated
from app.lib.fair_shares import take
from app.lib.gateway.gateway import WAIT, WAITED, Wait

Check: TypeAlias = Callable[[], object]
# Whom a wait counts for, how many of it may wait at once in a process, and its kind in a word.
Bound: TypeAlias = tuple[Hashable, int, str]

# In seconds: a web process that is told to stop has 20 seconds to answer.
LONGEST_WAIT = 15.0
LONGEST_WAIT_WITHOUT_KEY = 10.0
OF_A_KEY = 32
OF_A_TENANT = 128
# Without a key; apart, so that they never take the places of callers with one.
OF_AN_ADDRESS = 4
KEYLESS_OF_A_TENANT = 32

_log = structlog.get_logger(__name__)
_lock = Lock()
_waiting: "Counter[object]" = Counter()


def admitted_by(check: Check) -> None:
    """Keep the check that admits this request, which raises what refuses it.

    It needs no request: a stream repeats it in other threads, after the request's context.
    """
    g.admitted_by = check


def check() -> Check:
    """Return the check of this request; one that passes where nothing had to be presented."""
    found: Check = g.get("admitted_by", lambda: None)
    return found


def again() -> None:
    """Repeat the check, as after any wait; a caller that is refused is none, in the log too."""
    try:
        g.found_again = check()()
    except Exception:
        g.pop("caller", None)
        raise


def truncated_stream(
    parts: Iterator[bytes], request_id: str, told: Callable[[Exception], bool]
) -> Iterator[bytes]:
    """Yield the parts of a response until one raises, or its reader is admitted no longer.

    A problem document can no longer be sent then: the error is logged with the request's id, and
    the stream ends short of its Content-Length, so that the server closes the connection, or
    without the trailer that completes an export. `told` logs errors that it knows and returns
    whether it did; its lines carry the request's id.
    """
    # Taken now, for a response is iterated after its request.
    require_reader = check()

    def sent() -> Iterator[bytes]:
        begun = False
        try:
            for part in parts:
                if begun:
                    require_reader()
                begun = True
                yield part
        except Exception as error:  # noqa: BLE001  # after any error no part follows
            with structlog.contextvars.bound_contextvars(request_id=request_id):
                if told(error):
                    return
                if isinstance(error, NotFound | TenantSuspended | Unauthenticated):
                    _log.info("reader_refused")
                elif isinstance(error, ServiceError):
                    _log.error("response_truncated", problem=error.slug, detail=error.detail)
                else:
                    _log.error("response_truncated", exc_info=error)

    return sent()


@dataclass(frozen=True)
class Patience:
    """How many seconds to wait, and the value of `Preference-Applied` if the wait is applied.

    Nothing of it is `applied` for a client without a valid preference: the default holds.
    """

    seconds: float
    applied: str = ""


def patience(default: float, longest: float = LONGEST_WAIT) -> Patience:
    """Return how long this request may wait. Malformed preferences are ignored (section 2)."""
    preferences: dict[str, str] = {}
    for each in ",".join(request.headers.getlist("Prefer")).split(","):
        # Parameters, which follow a semicolon, are ignored; the first of a repeated name counts.
        name, _, value = each.partition(";")[0].partition("=")
        preferences.setdefault(name.strip(" \t").lower(), value.strip(' \t"'))
    wait = preferences.get("wait", "")
    if re.fullmatch("[0-9]{1,9}", wait):
        seconds = min(int(wait), int(longest))
        return Patience(seconds, f"wait={seconds}")
    if "respond-async" in preferences:
        return Patience(0, "respond-async")
    return Patience(default)


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
    again()
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
                take(_waiting, whose)

    return over


def _poll(ready: Callable[[], bool], until: float) -> None:
    # Often at first, since most packs take some milliseconds.
    pause = 0.02
    while not ready() and (left := until - time.monotonic()) > 0:
        time.sleep(min(pause, left))
        pause = min(pause * 1.5, 0.5)
