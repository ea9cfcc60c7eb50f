"""Connections to receivers, and the pool that keeps them alive, each for its owner alone.

Every wait ends with the attempt under way; the thread that owns a connection closes it. Behind an
answer may come one that no request has asked for (a stray), which the next request would take for
its own. So a connection rests before its next use, until nothing is known to follow.
"""

import math
import select
import socket
import ssl
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import Enum

from app.lib.outbound.answers import AnswerReader, Head, NotHTTP, looks_like_answer
from app.lib.outbound.attempt import Attempt, DeadlinePassed, Stage

_PIECE_BYTES = 64 * 1024

# Timeouts are rounded up to this, so that a quick exchange sets one, not one a call.
_STEP_SECONDS = 0.05


class Unread(Enum):
    """What stands on a connection that owes us nothing."""

    NOTHING = "nothing"
    END = "closed by the receiver, or bytes that are no answer"
    ANSWER = "an answer that no request has asked for"


class Connection:
    """A connection, used by one thread at a time.

    `answers` counts those that came, `status` and `answered_at` are the last one's; `keep` says
    whether it ended so that another request may follow.
    """

    __slots__ = (
        *("_attempt", "_poll", "_reader", "_sock", "_timeout", "answered_at", "answers", "keep"),
        *("opened_at", "status"),
    )

    def __init__(self, sock: socket.socket, attempt: Attempt) -> None:
        """Take over a connected socket, which `attempt` has opened."""
        self._sock = sock
        self._attempt = attempt
        self._timeout = 0.0
        self._reader = AnswerReader(self._receive)
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self.opened_at = self.answered_at = time.monotonic()
        self.answers = 0
        self.status = 0
        self.keep = False

    def encrypt(self, context: ssl.SSLContext, host: str) -> None:
        """Shake hands, within the attempt; raises `OSError`, as `ssl.SSLError` is."""
        self._bind()
        # The handshake as a whole is bounded by the timeout that the socket has at its beginning.
        encrypted = context.wrap_socket(
            self._sock, server_hostname=host, do_handshake_on_connect=False
        )
        self._sock = encrypted
        encrypted.do_handshake()

    def ask(self, request: bytes, attempt: Attempt) -> Head:
        """Send a request and read the head of its answer.

        Raises `NotHTTP` or an `OSError` of the stage that the attempt is in.
        """
        self._attempt = attempt
        self.keep = False
        attempt.stage = Stage.SENDING
        attempt.sent_at = time.monotonic()
        try:
            whole = self._send(request)
        except DeadlinePassed:
            raise
        except OSError as error:
            # What a receiver said that has closed the connection without reading all (413).
            try:
                head, whole = self._reader.head(), False
            except (NotHTTP, OSError):
                raise error from None
        else:
            attempt.stage = Stage.WAITING
            head = self._reader.head()
        self.answers += 1
        self.status = head.status
        head.keep = head.keep and whole
        return head

    def read(self, head: Head, most: int, into: bytearray) -> bool:
        """Read the first `most` bytes of the body `into`; return whether they are all of it.

        Raises as `ask` does; `into` has what came before.
        """
        try:
            whole = self._reader.body(head, most, into)
            self.keep = whole and head.keep
        finally:
            self.answered_at = time.monotonic()
        return whole

    def look(self) -> Unread:
        """Say, without waiting, what stands unread on the connection."""
        unread = self._reader.unread
        if not unread:
            sock = self._sock
            decrypted = sock.pending() if isinstance(sock, ssl.SSLSocket) else 0
            if not decrypted and not self._poll.poll(0):
                return Unread.NOTHING
            try:
                self._sock.settimeout(0)
                self._timeout = 0.0
                unread = self._sock.recv(_PIECE_BYTES)
            except (BlockingIOError, ssl.SSLWantReadError):
                # A session ticket, or half a record.
                return Unread.NOTHING
            except OSError:
                return Unread.END
            self._reader.unread = unread
        return Unread.ANSWER if looks_like_answer(unread) else Unread.END

    def close(self) -> None:
        """Close the connection."""
        self._sock.close()

    def _send(self, request: bytes) -> bool:
        """Send a request; False if the receiver answers before it has all of it."""
        self._bind()
        if len(request) <= _PIECE_BYTES:
            self._sock.sendall(request)
            return True
        ready = select.poll()
        ready.register(self._sock, select.POLLIN | select.POLLOUT)
        rest = memoryview(request)
        while rest:
            ready.poll(self._attempt.left() * 1000)
            seen = self.look()
            if seen is Unread.ANSWER:
                return False
            # Nothing more will be read before the answer, so it is no reason to wake up.
            ready.modify(self._sock, select.POLLOUT | (seen is Unread.NOTHING) * select.POLLIN)
            # A send that waits sees no answer come, and TLS sends a piece whole or not at all.
            self._sock.settimeout(0)
            self._timeout = 0.0
            try:
                rest = rest[self._sock.send(rest[:_PIECE_BYTES]) :]
            except (BlockingIOError, ssl.SSLWantWriteError):
                continue
            except ssl.SSLWantReadError:
                ready.modify(self._sock, select.POLLIN)
        return True

    def _receive(self) -> bytes:
        self._bind()
        if data := self._sock.recv(_PIECE_BYTES):
            self._attempt.received()
        return data

    def _bind(self) -> None:
        """Set the timeout to what is left; raises `DeadlinePassed` when nothing is."""
        wait = math.ceil(self._attempt.left() / _STEP_SECONDS) * _STEP_SECONDS
        if wait != self._timeout:
            self._timeout = wait
            self._sock.settimeout(wait)


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
        # Each connection takes one request only, for a while after a stray.
        one_each = line.strayed_at is not None and now - line.strayed_at < ONE_EACH_SECONDS
        if seen is not Unread.NOTHING or one_each:
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
