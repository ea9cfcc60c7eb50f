"""Stopping a worker: once told, it finishes what it does, whoever was told and however often.

A PaaS and systemd send SIGTERM to every process of a group, and Dramatiq's master passes the one it
got on to its workers. So a worker hears it twice, and to Dramatiq the second means "kill": work in
progress would be cut off. Here only the first counts; who wants to kill has SIGKILL.
"""

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
    """Say whether this process was told to stop: an actor that loops looks between two steps."""
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
        # Dramatiq's handler exits if it was called before, while this process was starting.
        with suppress(SystemExit):
            handler(number, frame)

    return stop
