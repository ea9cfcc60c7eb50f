"""Each second while leaves wait: integrate them into the transparency log and publish it."""

import time

import structlog

from app.errors import LogHalted
from jobs.process.runtime import runtime

_log = structlog.get_logger(__name__)

TURN_SECONDS = 5.0


def integrate() -> None:
    """Integrate and publish; log an alarm when the log is halted."""
    here = runtime()
    try:
        more = here.log.tick(time.monotonic() + TURN_SECONDS)
    except LogHalted as error:
        _log.critical("log_halted", problem=error.slug, detail=error.detail)
        return
    if more:
        here.bell.ring("integrate", ())
