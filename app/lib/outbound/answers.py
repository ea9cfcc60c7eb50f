"""Reads HTTP/1 answers as receivers write them: what can be read counts, what is odd is left.

The verdict is the status line's (RFC 9112, section 4). A header line or a length that is odd costs
the connection its next use, never the answer.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

# Of interim answers and headers together, and of the framing of chunks.
MAX_HEAD_BYTES = 64 * 1024
MAX_CHUNKED_BYTES = 64 * 1024

_LONGEST_STATUS_LINE = 8 * 1024
_LONGEST_CHUNK_LINE = 1024
_BEGIN = b"HTTP/1."
_STATUS_LINE = re.compile(rb"HTTP/1\.([0-9])[ \t]+([1-9][0-9]{2})(?:[ \t].*)?\r?", re.DOTALL)
_END_OF_HEAD = re.compile(rb"\n\r?\n")
_FRAMING = frozenset({"connection", "content-length", "transfer-encoding"})
_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CHUNK_SIZE = re.compile(rb"[ \t]*([0-9A-Fa-f]{1,16})[ \t]*(?:;.*)?")
_DIGITS = re.compile(r"[0-9]{1,15}")

# Without a body, whatever their headers say (RFC 9112, section 6.3). Behind a 101 is no HTTP.
_WITHOUT_BODY = frozenset({101, 204, 304})


class NotHTTP(Exception):
    """What came is not an answer of HTTP/1."""


class BrokenOff(ConnectionResetError):
    """The connection was closed before the answer was complete."""


@dataclass(slots=True)
class Head:
    """Status and headers of an answer; `keep`: its connection may take another request.

    The body ends after `length` bytes, with its last chunk (`chunked`), or with the connection.
    """

    status: int
    headers: list[tuple[str, str]] = field(default_factory=list)
    length: int | None = None
    chunked: bool = False
    keep: bool = True

    def get(self, name: str) -> str | None:
        """Return the first header of this name, given in lower case."""
        return next((value for key, value in self.headers if key.lower() == name), None)


class AnswerReader:
    """Reads answers, one after the other, of what `receive` returns: some bytes, none at the end.

    `unread` is what came behind the last answer.
    """

    def __init__(self, receive: Callable[[], bytes]) -> None:
        self._receive = receive
        self.unread = b""

    def head(self) -> Head:
        """Read up to the end of the headers of the final answer; interim ones are skipped.

        Headers beyond 64 KiB are left. Raises `NotHTTP`, `BrokenOff`, or what `receive` does.
        """
        room = MAX_HEAD_BYTES
        while True:
            head, read = self._one_head(room)
            room -= read
            # RFC 9110, section 15.2: a 103 taken for the answer would leave the true one unread.
            if head.status == 101 or head.status >= 200:
                return head
            if room <= 0:
                raise NotHTTP

    def body(self, head: Head, most: int, into: bytearray) -> bool:
        """Read the first `most` bytes of the body `into`; return whether they are all of it.

        Raises `NotHTTP`, `BrokenOff`, or what `receive` does; `into` has what came before.
        """
        if head.status in _WITHOUT_BODY:
            # What stands there of one that should not be is taken, and none waited for.
            if head.status == 101:
                head.keep = False
            elif head.status == 204 and not looks_like_answer(self.unread):
                if head.length or head.chunked or self.unread:
                    head.keep = False
                into += self.unread[:most]
                self.unread = b""
            return True
        if head.chunked:
            return self._chunks(most, into)
        if head.length is not None:
            self._take(min(head.length, most), into)
            return head.length <= most
        # Until the connection ends.
        while data := self.unread or self._receive():
            into += data[: most - len(into)]
            self.unread = b""
            if len(into) >= most:
                return False
        return True

    def _one_head(self, room: int) -> tuple[Head, int]:
        """Read one head of at most `room` bytes; return it, and how many it took."""
        data = bytearray(self.unread)
        searched = 0
        begun = False
        while True:
            if data[:1].isspace():
                # A line break behind the body before (RFC 9112, section 2.2).
                data, searched = data.lstrip(b"\r\n"), 0
            if end := _END_OF_HEAD.search(data, searched):
                self.unread = bytes(data[end.end() :])
                return _parse(bytes(data[: end.start()])), end.end()
            begun = begun or _has_begun(data)
            if len(data) > room:
                self.unread = b""
                # The last line may be half of one.
                head = _parse(bytes(data[: max(0, data.rfind(b"\n"))]))
                head.keep, head.chunked, head.length = False, False, 0
                return head, len(data)
            searched = max(0, len(data) - 2)
            data += self._more()

    def _more(self) -> bytes:
        data = self._receive()
        if not data:
            raise BrokenOff
        return data

    def _take(self, count: int, into: bytearray) -> None:
        while count > 0:
            data = self.unread or self._more()
            into += data[:count]
            self.unread = data[count:]
            count -= len(data)

    def _chunks(self, most: int, into: bytearray) -> bool:
        room = MAX_CHUNKED_BYTES
        while True:
            line = self._line()
            room -= len(line)
            size = _CHUNK_SIZE.fullmatch(line)
            if size is None or room < 0:
                raise NotHTTP
            count = int(size[1], 16)
            if count == 0:
                break
            left = most - len(into)
            self._take(min(count, left), into)
            if count > left:
                return False
            if self._line():
                raise NotHTTP
        while line := self._line():
            room -= len(line)
            if room < 0:
                return False
        return True

    def _line(self) -> bytes:
        while (end := self.unread.find(b"\n")) < 0:
            if len(self.unread) > _LONGEST_CHUNK_LINE:
                raise NotHTTP
            self.unread += self._more()
        line, self.unread = self.unread[:end], self.unread[end + 1 :]
        return line.removesuffix(b"\r")


def looks_like_answer(data: bytes) -> bool:
    """Say whether bytes that nobody waits for are an answer of HTTP, or the beginning of one."""
    data = data.lstrip(b"\r\n")
    return bool(data) and data[:5] == b"HTTP/"[: len(data)]


def _has_begun(data: bytearray) -> bool:
    """Say whether a whole status line has come; raises `NotHTTP` for what will never be one."""
    if data[: len(_BEGIN)] != _BEGIN[: len(data)]:
        raise NotHTTP
    end = data.find(b"\n", 0, _LONGEST_STATUS_LINE)
    if end < 0 and len(data) < _LONGEST_STATUS_LINE:
        return False
    if end < 0 or _STATUS_LINE.fullmatch(data, 0, end) is None:
        raise NotHTTP
    return True


def _parse(data: bytes) -> Head:
    """Read a status line and the headers behind it."""
    first, *lines = data.split(b"\n")
    status = _STATUS_LINE.fullmatch(first)
    if status is None:
        raise NotHTTP
    head = Head(int(status[2]))
    framing: dict[str, str] = {}
    for line in lines:
        if line[:1] in (b" ", b"\t") and head.headers:
            name, value = head.headers[-1]
            head.headers[-1] = (name, f"{value} {line.strip().decode('latin-1')}")
            head.keep = False
            continue
        field_name, colon, field_value = line.partition(b":")
        if not colon or not _TOKEN.fullmatch(field_name):
            head.keep = False
            if not colon or not field_name.strip():
                continue
        name, value = field_name.strip().decode("latin-1"), field_value.strip().decode("latin-1")
        head.headers.append((name, value))
        if (lower := name.lower()) in _FRAMING:
            framing[lower] = f"{framing[lower]},{value}" if lower in framing else value
    _frame(head, framing, old=status[1] == b"0")
    return head


def _frame(head: Head, framing: Mapping[str, str], *, old: bool) -> None:
    """Find where the body ends (RFC 9112, section 6.3); `old` is HTTP/1.0."""
    options, given, codings = (
        [item.strip() for item in framing[name].lower().split(",")] if name in framing else []
        for name in ("connection", "content-length", "transfer-encoding")
    )
    if "close" in options or (old and "keep-alive" not in options):
        head.keep = False
    lengths = set(given)
    if codings:
        head.chunked = codings[-1] == "chunked"
        head.keep = head.keep and head.chunked and not lengths
    elif len(lengths) == 1 and _DIGITS.fullmatch(length := lengths.pop()):
        head.length = int(length)
    elif head.status not in _WITHOUT_BODY or lengths:
        head.keep = False
