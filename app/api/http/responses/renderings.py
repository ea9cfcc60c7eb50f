"""A cache of exports made from bundles, compressed in memory.

Many readers of one export then cost one rendering. An entry lives for `KEPT_SECONDS` at most, so
expired bundles soon leave the cache too. Access is checked before each lookup.
"""

import time
import zlib
from collections import OrderedDict
from collections.abc import Iterator
from itertools import chain
from threading import Lock

KEPT_SECONDS = 60.0
_FASTEST = 1
_PIECE = 64 * 1024


class Renderings:
    """A cache of the newest renderings, at most `most` bytes compressed; safe for threads."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = Lock()
        self._kept: OrderedDict[str, tuple[float, bytes]] = OrderedDict()
        self._size = 0

    def get(self, etag: str) -> Iterator[bytes] | None:
        """Return the rendering cached under a strong ETag, in pieces, or None."""
        self.drop_old()
        with self._lock:
            found = self._kept.get(etag)
        return None if found is None else _pieces(found[1])

    def made(self, etag: str, parts: Iterator[bytes]) -> tuple[Iterator[bytes], bool]:
        """Make a rendering and cache it; return it in pieces, and whether it is complete.

        A rendering too large for the cache is completed while it is read.
        """
        press = zlib.compressobj(_FASTEST)
        pressed: list[bytes] = []
        size = 0
        for part in parts:
            pressed.append(press.compress(part))
            size += len(pressed[-1])
            if size > self._most // 2:
                pressed.append(press.flush(zlib.Z_SYNC_FLUSH))
                return chain(_pieces(b"".join(pressed)), parts), False
        pressed.append(press.flush())
        whole = b"".join(pressed)
        self._keep(etag, whole)
        return _pieces(whole), True

    def drop_old(self) -> None:
        """Drop expired renderings."""
        now = time.monotonic()
        with self._lock:
            while self._kept:
                etag, (until, _) = next(iter(self._kept.items()))
                if until > now:
                    return
                self._drop(etag)

    def _keep(self, etag: str, whole: bytes) -> None:
        with self._lock:
            if etag in self._kept:
                self._drop(etag)
            self._kept[etag] = (time.monotonic() + KEPT_SECONDS, whole)
            self._size += len(whole)
            while self._size > self._most:
                self._drop(next(iter(self._kept)))

    def _drop(self, etag: str) -> None:
        self._size -= len(self._kept.pop(etag)[1])


def _pieces(pressed: bytes) -> Iterator[bytes]:
    press = zlib.decompressobj()
    rest = pressed
    while rest:
        if piece := press.decompress(rest, _PIECE):
            yield piece
        rest = press.unconsumed_tail
    yield press.flush()
