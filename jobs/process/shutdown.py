"""Graceful shutdown: a worker finishes its work however many stop signals it gets.

A PaaS and systemd send SIGTERM to the whole process group, and Dramatiq's master passes its own on,
so a worker gets two. To Dramatiq the second means "kill". Here only the first counts; SIGKILL still
kills.
"""

import logging
import signal
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

from dramatiq import Broker, Middleware, Worker

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class _Stop:
    """A plain flag: an Event's lock could be held by the very thread a signal interrupts."""

    begun = False


def shutting_down() -> bool:
    """Say whether this process was told to stop; actors that loop check it between two steps."""
    return _Stop.begun


class GracefulStop(Middleware):
    """Keeps the flag, and swallows every stop signal but the first."""

    def after_process_boot(self, broker: Broker) -> None:
        """Stand before the handlers that Dramatiq has just installed."""
        for number in _SIGNALS:
            handler = signal.getsignal(number)
            if callable(handler):
                signal.signal(number, _once(handler))

    def before_worker_shutdown(self, broker: Broker, worker: Worker) -> None:
        """Set the flag also for a signal that came before we stood in its way."""
        _Stop.begun = True

    def after_worker_shutdown(self, broker: Broker, worker: Worker) -> None:
        """Nothing runs any more: a next worker in this process, as in tests, starts afresh."""
        _Stop.begun = False


def _once(
    handler: Callable[[int, FrameType | None], object],
) -> Callable[[int, FrameType | None], None]:
    def stop(number: int, frame: FrameType | None) -> None:
        if _Stop.begun:
            return
        _Stop.begun = True
        # Dramatiq's handler logs, and may have interrupted the main thread writing a line; Python
        # refuses a reentrant write with a traceback. `Shutting down...` follows anyway.
        disabled = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        # It exits if it was called before, while this process was starting.
        with suppress(SystemExit):
            handler(number, frame)
        logging.disable(disabled)

    return stop
