"""Connections that are kept alive, each for its owner alone, and what is known of its receiver.

Milliseconds behind an answer may come one that no request has asked for (a stray), which the next
request would take for its own. So a connection rests before its next use, until nothing is known to
follow answers of its status.
"""

import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Hashable
from dataclasses import dataclass, field

from app.lib.outbound.connection import Connection, Unread

# A connection stays with the address that was vetted; an older one is not used again, so that a
# change in DNS is followed within a minute.
MAX_CONNECTION_SECONDS = 60.0
# Far beyond the milliseconds after which strays come.
REST_SECONDS = 0.05
# So many rests in a row with nothing behind an answer of a status, and the next need none.
QUIET_RESTS = 20
# So long after a stray, each connection takes one request.
ONE_EACH_SECONDS = 3600.0

# Connections that are held open without using: of all lines, and of each.
MAX_CONNECTIONS = 512
MAX_CONNECTIONS_EACH = 8
# Lines remembered; one holds some hundred bytes.
MAX_LINES = 4096


@dataclass(slots=True)
class Line:
    """The connections of one owner to one receiver that rest, the oldest first.

    `quiet` counts, by status, the rests after which nothing stood behind an answer; `strayed_at` is
    when an answer was last found that no request had asked for.
    """

    resting: deque[Connection] = field(default_factory=deque)
    quiet: Counter[int] = field(default_factory=Counter)
    strayed_at: float | None = None

    def needs_rest(self, status: int) -> bool:
        """Whether something may come behind an answer of this status."""
        return self.quiet[status] < QUIET_RESTS

    def one_each(self, now: float) -> bool:
        """Whether each connection takes one request only."""
        return self.strayed_at is not None and now - self.strayed_at < ONE_EACH_SECONDS

    def note_stray(self) -> None:
        """Note an answer that no request had asked for."""
        self.strayed_at = time.monotonic()
        self.quiet.clear()


class Pool:
    """The lines of all owners, for all threads of a process; those unused longest are dropped."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: OrderedDict[Hashable, Line] = OrderedDict()
        self._resting = 0

    def take(self, key: Hashable) -> Connection | None:
        """Return a connection on which nothing stands; None where one has to be opened."""
        found = None
        with self._lock:
            line = self._line(key)
            now = time.monotonic()
            # The longest rested first: whatever comes behind its answer has come.
            for connection in tuple(line.resting):
                rested = now - connection.answered_at >= REST_SECONDS
                waits = found is not None or (not rested and line.needs_rest(connection.status))
                if waits and not _is_old(connection, now):
                    continue
                line.resting.remove(connection)
                self._resting -= 1
                if self._may_serve(line, connection, now, rested=rested):
                    found = connection
                else:
                    connection.close()
        return found

    def give(self, key: Hashable, connection: Connection) -> None:
        """Let a connection rest whose last answer was read whole."""
        with self._lock:
            line = self._line(key)
            if len(line.resting) >= MAX_CONNECTIONS_EACH:
                connection.close()
                return
            line.resting.append(connection)
            self._resting += 1
            if self._resting > MAX_CONNECTIONS:
                oldest = next(each for each in self._lines.values() if each.resting)
                self._drop(oldest)

    def may_go_on(self, key: Hashable, connection: Connection) -> bool:
        """Say whether a connection may take another request without a rest."""
        line = self._lines.get(key)
        rests = line is None or line.needs_rest(connection.status)
        return not rests and not _is_old(connection, time.monotonic())

    def note_stray(self, key: Hashable) -> None:
        """Note that an answer stood on a connection that no request had asked for."""
        with self._lock:
            self._line(key).note_stray()

    def close(self) -> None:
        """Close every connection that rests."""
        with self._lock:
            for line in self._lines.values():
                self._drop(line)

    @staticmethod
    def _may_serve(line: Line, connection: Connection, now: float, *, rested: bool) -> bool:
        seen = connection.look()
        if seen is Unread.ANSWER:
            line.note_stray()
        if seen is not Unread.NOTHING or line.one_each(now):
            return False
        if rested:
            line.quiet[connection.status] += 1
        return not _is_old(connection, now)

    def _line(self, key: Hashable) -> Line:
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = Line()
            if len(self._lines) > MAX_LINES:
                self._drop(self._lines.popitem(last=False)[1])
        else:
            self._lines.move_to_end(key)
        return line

    def _drop(self, line: Line) -> None:
        while line.resting:
            line.resting.popleft().close()
            self._resting -= 1


def _is_old(connection: Connection, now: float) -> bool:
    return now - connection.opened_at > MAX_CONNECTION_SECONDS
