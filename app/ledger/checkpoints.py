"""Checkpoints (C2SP tlog-checkpoint): origin, size and root of a log, as a signed note's text."""

import re
from dataclasses import dataclass

from app.ledger.merkle import EMPTY_ROOT, HASH_BYTES, MAX_SIZE
from app.ledger.notes import (
    Malformed,
    Note,
    Signer,
    Unverified,
    VerifierKey,
    check_text,
    decode_base64,
    encode_base64,
)

_SIZE = re.compile(r"0|[1-9][0-9]{0,18}")


@dataclass(frozen=True)
class Checkpoint:
    """A log's origin, the number of its leaves, and the root over them; without extension lines.

    Raises Malformed for what could not be written, or not be read back.
    """

    origin: str
    size: int
    root: bytes

    def __post_init__(self) -> None:
        if not self.origin or "\n" in self.origin:
            raise Malformed("The origin of a checkpoint is one line, and not empty.")
        if not 0 <= self.size <= MAX_SIZE or len(self.root) != HASH_BYTES:
            raise Malformed(f"A checkpoint has a size below 2^63 and a root of {HASH_BYTES} bytes.")
        if self.size == 0 and self.root != EMPTY_ROOT:
            raise Malformed("An empty tree has another root.")
        check_text(self.text)

    @property
    def text(self) -> str:
        """The note text."""
        return f"{self.origin}\n{self.size}\n{encode_base64(self.root)}\n"

    @classmethod
    def parse(cls, text: str) -> "Checkpoint":
        """Read a note text. Raises Malformed unless it is as `text` would write it."""
        *lines, end = text.split("\n")
        if end or len(lines) != 3:
            raise Malformed("A checkpoint is three lines, each ending with a newline.")
        origin, size, root = lines
        if not _SIZE.fullmatch(size):
            raise Malformed("The second line of a checkpoint is its size, without leading zeros.")
        return cls(origin, int(size), decode_base64(root))

    def sign(self, signer: Signer) -> Note:
        """Return it as a note signed by the log, whose key has the origin as its name.

        Raises ValueError for a signer of another name.
        """
        if signer.name != self.origin:
            raise ValueError(f"{signer.name} does not sign for {self.origin}.")
        return Note(self.text, (signer.sign(self.text),))


def read(data: bytes, key: VerifierKey) -> Checkpoint:
    """Read a signed checkpoint of the log with this key.

    Raises Malformed, or Unverified if the log did not sign it or it has another origin.
    """
    note = Note.parse(data)
    if not note.signed_by([key]):
        raise Unverified("The note has no signature by a key that is known.")
    found = Checkpoint.parse(note.text)
    if found.origin != key.name:
        raise Unverified(f"The checkpoint is of {found.origin}, not of {key.name}.")
    return found
