"""A letter, and what a sender is asked before its content."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from app.lib.mail.mailer import Letter
from tests.support.servers.receivers import Listener

LETTER = Letter(
    "dig_1", "records@example.com", "dana@example.com", b"Subject: x\r\n\r\n.dot\r\nbody\r\n"
)


class GoAhead:
    """Counts how often it is asked."""

    def __init__(self, *, says: bool = True) -> None:
        self.asked = 0
        self._says = says

    def __call__(self) -> bool:
        self.asked += 1
        return self._says


@contextmanager
def dripping(first: bytes, then: bytes) -> Iterator[int]:
    """Serve each connection: `first` at once, then `then`, a byte at a time, for ever."""
    over = threading.Event()

    def serve(connection: socket.socket) -> None:
        connection.sendall(first)
        while not over.wait(0.02):
            connection.sendall(then)

    # It waits for no sender: one whose time was up before it connected never comes.
    with Listener(serve) as listener:
        try:
            yield listener.port
        finally:
            over.set()


@contextmanager
def answering(at: str, answer: str) -> Iterator[int]:
    """Serve mail, and answer one word, the final dot (`.`), or the connection, with this line."""

    def serve(connection: socket.socket) -> None:
        with connection, connection.makefile("rwb") as talk:
            said = answer.encode() if not at else b"220 here"
            in_content = False
            while True:
                talk.write(said + b"\r\n")
                talk.flush()
                line = talk.readline()
                while in_content and line not in (b".\r\n", b""):
                    line = talk.readline()
                word = line[:4].strip().decode().upper()
                if word in ("", "QUIT"):
                    return
                said = b"250 OK"
                in_content = word == "DATA" and at != "DATA"
                if in_content:
                    said = b"354 go on"
                if word == at:
                    said = answer.encode()

    with Listener(serve) as listener:
        yield listener.port
