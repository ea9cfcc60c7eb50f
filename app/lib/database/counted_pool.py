"""A connection pool that tells how many of its connections are in use, and who had to wait."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy.pool import ConnectionPoolEntry, QueuePool

# As SQLAlchemy does for its own pools, whose loggers are named after their class's module.
logging.getLogger(__name__).setLevel(logging.WARNING)


@dataclass(frozen=True, slots=True)
class PoolUse:
    """How large a pool is, and the most connections that were in use at once lately."""

    size: int
    most_in_use: int


class CountedPool(QueuePool):
    """A pool of a fixed size; `on_wait` gets the seconds of each wait for a connection."""

    on_wait: Callable[[float], None] | None = None
    _most = 0

    def use(self) -> PoolUse:
        """Return its use since the last call of this, or since it was made."""
        now = self.checkedout()
        most, self._most = max(self._most, now), now
        return PoolUse(self.size(), most)

    def _do_get(self) -> ConnectionPoolEntry:
        is_full = self.checkedout() >= self.size()
        taken = self._wait() if is_full else super()._do_get()
        # Threads may write at once: a peak that is one too low is no harm.
        self._most = max(self._most, self.checkedout())
        return taken

    def _wait(self) -> ConnectionPoolEntry:
        began = time.monotonic()
        try:
            return super()._do_get()
        finally:
            if self.on_wait is not None:
                self.on_wait(time.monotonic() - began)

    def recreate(self) -> "QueuePool":
        """Return another of the same kind: an engine that is disposed of makes one."""
        again = super().recreate()
        if isinstance(again, CountedPool):
            again.on_wait = self.on_wait
        return again
