"""Ports for servers that are started some seconds after their port was chosen."""

import itertools
import os
import socket

# Below the ephemeral range: the system assigns none of these.
_FIRST, _COUNT = 15_000, 15_000
_numbers = itertools.count(1)


def own_port() -> int:
    """Return a TCP port that is free and that no other test, of this process or another, chooses.

    The UDP port of the same number says so, until this process ends. A web process would otherwise
    share it with another's: its listener sets SO_REUSEPORT.
    """
    while True:
        port = _FIRST + (101 * os.getpid() + next(_numbers)) % _COUNT
        with socket.socket(type=socket.SOCK_DGRAM) as mark, socket.socket() as probe:
            try:
                mark.bind(("127.0.0.1", port))
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            mark.detach()
            return port
