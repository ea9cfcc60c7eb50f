"""Streams that fail after their first bytes have left.

A problem document can no longer be sent then. The error is logged with the request's id and the
stream ends: short of its Content-Length, so that the server closes the connection, or without the
trailer that completes an export.
"""

from collections.abc import Callable, Iterator

import structlog

from app.errors import ServiceError

_log = structlog.get_logger(__name__)


def short(
    parts: Iterator[bytes], request_id: str, told: Callable[[Exception], bool]
) -> Iterator[bytes]:
    """Yield the parts of a response until one raises.

    `told` logs errors that it knows and returns whether it did; its lines carry the request's id.
    """
    try:
        yield from parts
    except Exception as error:  # noqa: BLE001  # after any error no part follows
        with structlog.contextvars.bound_contextvars(request_id=request_id):
            if told(error):
                return
            if isinstance(error, ServiceError):
                _log.error("response_truncated", problem=error.slug, detail=error.detail)
            else:
                _log.error("response_truncated", exc_info=error)
