"""One connection to a receiver: sends a request, reads its answer, and looks for what is unread.

Every wait ends with the attempt under way. At the deadline the thread that owns the connection
closes it; no other thread touches a socket whose descriptor may by then be another connection's.
"""

import math
import select
import socket
import ssl
import time
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
            head = self._said_before(error)
            whole = False
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

    def _said_before(self, error: OSError) -> Head:
        """Read what a receiver said that has closed the connection without reading all (413)."""
        try:
            return self._reader.head()
        except (NotHTTP, OSError):
            raise error from None

    def _receive(self) -> bytes:
        self._bind()
        data = self._sock.recv(_PIECE_BYTES)
        if data:
            self._attempt.received()
        return data

    def _bind(self) -> None:
        """Set the timeout to what is left; raises `DeadlinePassed` when nothing is."""
        wait = math.ceil(self._attempt.left() / _STEP_SECONDS) * _STEP_SECONDS
        if wait != self._timeout:
            self._timeout = wait
            self._sock.settimeout(wait)
