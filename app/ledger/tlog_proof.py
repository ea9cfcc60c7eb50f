"""Self-contained proofs (C2SP tlog-proof): a leaf's index, its path, and the checkpoint.

The leaf's data is not part of it.
"""

import re
from dataclasses import dataclass

from app.ledger.merkle import HASH_BYTES, MAX_SIZE
from app.ledger.notes import Malformed, Note, decode_base64, encode_base64

HEADER = "c2sp.org/tlog-proof@v1"

MAX_PATH = 63
"""A tree of less than 2^63 leaves has no longer path."""

_INDEX = re.compile(r"index (0|[1-9][0-9]{0,18})")


@dataclass(frozen=True)
class TlogProof:
    """Where a leaf is, the hashes from its sibling up to the root's child, and a signed checkpoint.

    `extra` is opaque and not authenticated; ours have none. Raises Malformed for what could not
    be read back. Nothing is verified: that is `merkle.verify_inclusion` and `Note.verify`.
    """

    index: int
    path: tuple[bytes, ...]
    checkpoint: Note
    extra: bytes | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.index <= MAX_SIZE:
            raise Malformed("The index of a leaf is below 2^63.")
        if len(self.path) > MAX_PATH or any(len(each) != HASH_BYTES for each in self.path):
            raise Malformed(f"A path has up to {MAX_PATH} hashes of {HASH_BYTES} bytes.")
        if self.extra == b"":
            raise Malformed("The line of extra data is left out when there is none.")

    def __str__(self) -> str:
        extra = [] if self.extra is None else [f"extra {encode_base64(self.extra)}"]
        lines = [HEADER, *extra, f"index {self.index}", *map(encode_base64, self.path), ""]
        return "".join(f"{line}\n" for line in lines) + str(self.checkpoint)

    def __bytes__(self) -> bytes:
        return str(self).encode()

    @classmethod
    def parse(cls, data: bytes) -> "TlogProof":
        """Read a proof. Raises Malformed unless it is as `str` would write it."""
        head, blank, note = data.partition(b"\n\n")
        try:
            header, *lines = head.decode("ascii").split("\n")
        except UnicodeDecodeError:
            raise Malformed("A proof is ASCII up to its checkpoint.") from None
        if header != HEADER or not blank:
            raise Malformed(f"A proof begins with {HEADER}, and an empty line ends its hashes.")
        extra = None
        if lines and lines[0].startswith("extra "):
            extra = decode_base64(lines.pop(0).removeprefix("extra "))
        index = _INDEX.fullmatch(lines[0]) if lines else None
        if index is None:
            raise Malformed("A proof has a line `index <decimal>`, without leading zeros.")
        path = tuple(map(decode_base64, lines[1:]))
        return cls(int(index[1]), path, Note.parse(note), extra)
