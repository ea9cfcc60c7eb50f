"""A letter, and what a sender is asked before its content."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from app.lib.mail.mailer import Letter

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
    """Serve one connection: `first` at once, then `then`, a byte at a time, for ever."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(first)
                while not over.wait(0.02):
                    try:
                        connection.sendall(then)
                    except OSError:
                        return

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        over.set()
        thread.join()
