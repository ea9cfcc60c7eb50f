"""Graceful shutdown: a worker finishes its work even after several stop signals.

A PaaS and systemd send SIGTERM to the whole process group, and Dramatiq's main process forwards its
own, so a worker gets two. To Dramatiq the second means "kill". Here only the first counts; SIGKILL
still kills.
"""

import logging
import signal
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

from dramatiq import Broker, Middleware, Worker

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class _Stop:
    """A plain flag: an Event's lock could be held by the thread that a signal interrupts."""

    begun = False


def shutting_down() -> bool:
    """Say whether this process was told to stop; looping actors check it between steps."""
    return _Stop.begun


class GracefulStop(Middleware):
    """Keeps the flag, and swallows every stop signal but the first."""

    def after_process_boot(self, broker: Broker) -> None:
        """Wrap the signal handlers that Dramatiq has just installed."""
        for number in _SIGNALS:
            handler = signal.getsignal(number)
            if callable(handler):
                signal.signal(number, _once(handler))

    def before_worker_shutdown(self, broker: Broker, worker: Worker) -> None:
        """Set the flag also for a signal that came before the handlers were wrapped."""
        _Stop.begun = True

    def after_worker_shutdown(self, broker: Broker, worker: Worker) -> None:
        """Reset the flag for a next worker in this process, as in tests."""
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
        # The handler exits if it was called before, during the start of this process.
        with suppress(SystemExit):
            handler(number, frame)
        logging.disable(disabled)

    return stop
