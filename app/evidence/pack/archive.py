"""A deterministic ZIP of stored files: no times, no names of hosts, no compression.

Sizes and checksums stand before each file, so it is read twice: to measure and to write (PKWARE's
APPNOTE 4.3.6).
"""

import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256

MAX_BYTES = 2**32 - 2
"""Beyond this a ZIP needs the fields of Zip64, which these archives do not have."""

# 1 February 1980. The clock of ZIP begins on 1 January, in local time: west of Greenwich programs
# that zip the files again would be before it.
_MIDNIGHT, _FIRST_DAY = 0, 0x0041
_VERSION = 20
_UNIX = 3
_MODE = 0o100644 << 16
_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")

Chunks = Callable[[], Iterable[bytes]]
"""Yields a file's bytes, the same each time that it is called."""


class TooLarge(ValueError):
    """The files do not fit a ZIP without Zip64."""


class Unrepeatable(RuntimeError):
    """A file had other bytes when it was written than when it was measured."""


@dataclass(frozen=True)
class Member:
    """A file of the archive, measured; its name is ASCII."""

    name: str
    size: int
    crc32: int
    sha256: str
    chunks: Chunks


def measure(name: str, chunks: Chunks) -> Member:
    """Read a file once, for its size and its digests."""
    size = crc = 0
    digest = sha256()
    for chunk in chunks():
        size += len(chunk)
        crc = zlib.crc32(chunk, crc)
        digest.update(chunk)
    return Member(name, size, crc, digest.hexdigest(), chunks)


def of_bytes(name: str, data: bytes) -> Member:
    """Measure a file that is in memory."""
    return measure(name, lambda: (data,))


class Archive:
    """The archive of these members, sorted by name: `size` is known before anything is written."""

    def __init__(self, members: Iterable[Member]) -> None:
        """Take each name once. Raises ValueError for what does not fit a ZIP without Zip64."""
        self.members: Sequence[Member] = sorted(members, key=lambda each: each.name)
        names = {each.name for each in self.members}
        if len(names) != len(self.members):
            raise ValueError("Two files of an archive have the same name.")
        heads = _LOCAL.size + _CENTRAL.size
        self.size = _END.size + sum(heads + 2 * len(each.name) + each.size for each in self.members)
        if self.size > MAX_BYTES:
            raise TooLarge(f"An archive has up to {MAX_BYTES} bytes, not {self.size}.")

    def __iter__(self) -> Iterator[bytes]:
        """Yield the archive's bytes in chunks. Raises Unrepeatable if a file has changed."""
        directory = bytearray()
        offset = 0
        for member in self.members:
            directory += _central(member, offset)
            head = _local(member)
            yield head
            yield from _checked(member)
            offset += len(head) + member.size
        yield bytes(directory)
        count = len(self.members)
        yield _END.pack(b"PK\5\6", 0, 0, count, count, len(directory), offset, 0)


def _checked(member: Member) -> Iterator[bytes]:
    size = crc = 0
    for chunk in member.chunks():
        size += len(chunk)
        crc = zlib.crc32(chunk, crc)
        yield chunk
    if (size, crc) != (member.size, member.crc32):
        raise Unrepeatable(f"{member.name} is not as it was measured.")


def _shared(member: Member) -> tuple[int, ...]:
    """Return what both headers say: no flags, stored, the time, checksum, sizes, lengths."""
    sizes = (member.crc32, member.size, member.size, len(member.name), 0)
    return (_VERSION, 0, 0, _MIDNIGHT, _FIRST_DAY, *sizes)


def _local(member: Member) -> bytes:
    return _LOCAL.pack(b"PK\3\4", *_shared(member)) + member.name.encode("ascii")


def _central(member: Member, offset: int) -> bytes:
    made_by = _UNIX << 8 | _VERSION
    fixed = _CENTRAL.pack(b"PK\1\2", made_by, *_shared(member), 0, 0, 0, _MODE, offset)
    return fixed + member.name.encode("ascii")
