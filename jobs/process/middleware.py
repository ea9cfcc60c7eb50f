"""Dramatiq middleware of every worker: log and counts of messages, start and stop."""

import logging
import signal
import traceback
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

import structlog
from dramatiq import Broker, MessageProxy, Middleware, Worker
from structlog.contextvars import bind_contextvars, clear_contextvars

from app import metrics
from app.errors import Unavailable
from app.lib.metric_registry import Tally

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class _Stop:
    # No Event: its lock could be held by the thread that a signal interrupts.
    begun = False


def shutting_down() -> bool:
    """Say whether this process was told to stop; looping actors check it between steps."""
    return _Stop.begun


class GracefulStop(Middleware):
    """Keeps the flag, and swallows every stop signal but the first.

    A PaaS and systemd send SIGTERM to the whole process group, and Dramatiq's main process forwards
    its own, so a worker gets two. To Dramatiq the second means "kill"; here only SIGKILL kills.
    """

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


_log = structlog.get_logger(__name__)

_FRAMES = 8


class MessageLog(Middleware):
    """Counts messages and binds them to log lines; logs a failure in one, without tenant data."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally

    def after_process_boot(self, broker: Broker) -> None:
        """Silence Dramatiq's own log lines of failed and skipped messages.

        They print an exception's text, which may quote a row, and a warning for each stale tick.
        """
        for name in ("worker.WorkerThread", "middleware.age_limit.AgeLimit"):
            logging.getLogger(f"dramatiq.{name}").setLevel(logging.CRITICAL)

    def before_process_message(self, broker: Broker, message: MessageProxy) -> None:
        """Bind the actor and its arguments, which are ids."""
        bind_contextvars(
            actor=message.actor_name, arguments=list(message.args), message_id=message.message_id
        )

    def after_process_message(
        self,
        broker: Broker,
        message: MessageProxy,
        *,
        result: object = None,
        exception: BaseException | None = None,
    ) -> None:
        """Log the failure and its frames; only warn of an unavailable database or a locked row."""
        became = "done" if exception is None else "failed"
        self._tally.add(metrics.MESSAGES, message.actor_name, became)
        if isinstance(exception, Unavailable):
            _log.warning("database_unavailable", error=kind(exception), at=where(exception))
        elif exception is not None:
            _log.error("message_failed", error=kind(exception), at=where(exception))
        clear_contextvars()

    def after_skip_message(self, broker: Broker, message: MessageProxy) -> None:
        """Count a message past its age: the next tick does its work."""
        self._tally.add(metrics.MESSAGES, message.actor_name, "too_old")
        _log.debug("message_too_old")
        clear_contextvars()


class Lifetime(Middleware):
    """Opens a process's services before its first message, closes them after the last."""

    def __init__(self, start: Callable[[int], None], stop: Callable[[], None]) -> None:
        """Set the hooks: `start` gets the number of threads; `stop` runs after all have ended."""
        self._start = start
        self._stop = stop

    def before_worker_boot(self, broker: Broker, worker: Worker) -> None:
        """Run `start`; exit the process if it fails, as Dramatiq would only log the error."""
        try:
            self._start(worker.worker_threads)
        except Exception as error:
            _log.critical("worker_cannot_start", error=kind(error), at=where(error))
            raise SystemExit(1) from error

    def after_worker_shutdown(self, broker: Broker, worker: Worker) -> None:
        """Run `stop`."""
        self._stop()


def kind(error: BaseException) -> str:
    """Return the names of an exception and its causes: `OperationalError < AdminShutdown`.

    Never its text, which may quote a row or a statement's values.
    """
    names = [type(error).__name__]
    while (cause := error.__cause__) is not None and len(names) < _FRAMES:
        names.append(type(cause).__name__)
        error = cause
    return " < ".join(names)


def where(error: BaseException) -> list[str]:
    """Return the innermost frames of an exception as `file:line function`, outermost first."""
    frames = traceback.extract_tb(error.__traceback__)[-_FRAMES:]
    return [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
