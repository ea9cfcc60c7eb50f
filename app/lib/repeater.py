"""A daemon thread that repeats some work until it is closed.

A fork takes no thread along, so `begin` is called again in the child, which costs next to nothing
where the thread runs.
"""

import threading
from collections.abc import Callable
from multiprocessing.util import Finalize

import redis
import structlog

from app.lib.stores import reason

_log = structlog.get_logger(__name__)


class Repeater:
    """Repeats `work` each `every` seconds, whatever it raises."""

    def __init__(
        self,
        name: str,
        work: Callable[[], object],
        every: float,
        *,
        failed: str,
        at_end: float | None = None,
    ) -> None:
        """`failed` is the event logged when work begins to raise.

        With `at_end` it works once more as it ends, also where the process does: so many seconds of
        that are waited for.
        """
        self._name = name
        self._work = work
        self._every = every
        self._failed = failed
        self._at_end = at_end
        self._beginning = threading.Lock()
        self._stopping = threading.Event()
        self._failing = False
        self._thread: threading.Thread | None = None
        self._at_exit: Finalize | None = None

    def begin(self) -> bool:
        """Start the thread unless it runs; return whether this call started it."""
        if self._thread is not None and self._thread.is_alive():
            return False
        with self._beginning:
            if self._thread is not None and self._thread.is_alive():
                return False
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            thread.start()
            # Only now: `close`, in another thread, cannot join one that has not begun.
            self._thread = thread
            if self._at_end is not None:
                # A web server that is told to stop tells the application nothing, and its processes
                # are those of multiprocessing, which do not run what was registered with atexit.
                self._at_exit = Finalize(None, self.close, (self._at_end,), exitpriority=1)
            return True

    def close(self, timeout: float) -> None:
        """End, waiting at most `timeout` seconds for the work under way."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(timeout)
        if self._at_exit is not None:
            self._at_exit.cancel()

    def work(self) -> bool:
        """Work once; return whether it succeeded. The first of several errors is logged."""
        try:
            self._work()
        except Exception as error:  # noqa: BLE001  # the thread must outlive each failure
            if not self._failing:
                why = {"reason": reason(error)} if isinstance(error, redis.RedisError) else {}
                _log.warning(self._failed, error=type(error).__name__, **why)
            self._failing = True
            return False
        self._failing = False
        return True

    def _run(self) -> None:
        pause = 0.0
        while not self._stopping.wait(pause):
            self.work()
            pause = self._every
        if self._at_end is not None:
            self.work()
