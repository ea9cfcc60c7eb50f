"""Streams that end after their first bytes have left: of an error, or of a reader refused by now.

A problem document can no longer be sent then. It is logged with the request's id and the stream
ends: short of its Content-Length, so that the server closes the connection, or without the trailer
that completes an export.
"""

from collections.abc import Callable, Iterator

import structlog

from app.api.http import admission
from app.errors import NotFound, ServiceError, TenantSuspended, Unauthenticated

_log = structlog.get_logger(__name__)


def short(
    parts: Iterator[bytes], request_id: str, told: Callable[[Exception], bool]
) -> Iterator[bytes]:
    """Yield the parts of a response until one raises, or its reader is admitted no longer.

    `told` logs errors that it knows and returns whether it did; its lines carry the request's id.
    """
    # Here, for a response is iterated after its request.
    return _short(parts, admission.check(), request_id, told)


def _short(
    parts: Iterator[bytes],
    require_reader: admission.Check,
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


def _is_admitted(require_reader: admission.Check) -> bool:
    try:
        require_reader()
    except (NotFound, TenantSuspended, Unauthenticated):
        return False
    return True
