"""Random bytes of the operating system, read ahead for each thread.

`os.urandom` gives the interpreter away each time: on an event loop beside busy threads that costs
up to a millisecond. Keys and secrets are not read ahead.
"""

import os
import threading

_AHEAD = 4096


class _Reserve(threading.local):
    content = b""
    used = 0


_reserve = _Reserve()


def random_bytes(count: int) -> bytes:
    """Return so many bytes, which nobody else gets."""
    start = _reserve.used
    if start + count > len(_reserve.content):
        _reserve.content, start = os.urandom(max(_AHEAD, count)), 0
    _reserve.used = start + count
    return _reserve.content[start : start + count]


def _forget() -> None:
    _reserve.content = b""


# A child would give out what its parent does.
os.register_at_fork(after_in_child=_forget)
