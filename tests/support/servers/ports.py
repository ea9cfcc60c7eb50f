"""Ports for servers that are started some seconds after their port was chosen."""

import itertools
import os
import socket

# Below those that the system gives to whoever asks for any: nobody gets one of these by chance.
_FIRST, _COUNT = 15_000, 15_000
_numbers = itertools.count(1)


def own_port() -> int:
    """Return a port that is free and that no other test, of this process or another, will choose.

    Processes that began one after the other choose a hundred apart.
    """
    while True:
        port = _FIRST + (101 * os.getpid() + next(_numbers)) % _COUNT
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
