"""How a request was admitted: the check is repeated after a wait, and between parts of a stream.

A key, session or link may end, and a record's visibility change, while its reader waits.
"""

from collections.abc import Callable, Iterator
from typing import TypeAlias

import structlog
from flask import g

from app.errors import NotFound, ServiceError, TenantSuspended, Unauthenticated

Check: TypeAlias = Callable[[], object]

_log = structlog.get_logger(__name__)


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


def found_again() -> object | None:
    """Return what the check has returned when it was repeated; None if it was not."""
    found: object | None = g.get("found_again")
    return found


def truncated_stream(
    parts: Iterator[bytes], request_id: str, told: Callable[[Exception], bool]
) -> Iterator[bytes]:
    """Yield the parts of a response until one raises, or its reader is admitted no longer.

    A problem document can no longer be sent then: the error is logged with the request's id, and
    the stream ends short of its Content-Length, so that the server closes the connection, or
    without the trailer that completes an export. `told` logs errors that it knows and returns
    whether it did; its lines carry the request's id.
    """
    # Here, for a response is iterated after its request.
    return _truncated(parts, check(), request_id, told)


def _truncated(
    parts: Iterator[bytes],
    require_reader: Check,
    request_id: str,
    told: Callable[[Exception], bool],
) -> Iterator[bytes]:
    begun = False
    try:
        for part in parts:
            if begun and not _is_admitted(require_reader):
                _log.info("reader_refused", request_id=request_id)
                return
            begun = True
            yield part
    except Exception as error:  # noqa: BLE001  # after any error no part follows
        with structlog.contextvars.bound_contextvars(request_id=request_id):
            if told(error):
                return
            if isinstance(error, ServiceError):
                _log.error("response_truncated", problem=error.slug, detail=error.detail)
            else:
                _log.error("response_truncated", exc_info=error)


def _is_admitted(require_reader: Check) -> bool:
    try:
        require_reader()
    except (NotFound, TenantSuspended, Unauthenticated):
        return False
    return True
