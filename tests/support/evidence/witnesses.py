"""A witness of the tests' own: C2SP tlog-witness over HTTP, with its own key and memory."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from app.ledger import checkpoints, merkle
from app.ledger.checkpoints import Checkpoint
from app.ledger.merkle import ProofRefused
from app.ledger.notes import (
    COSIGNATURE,
    Signature,
    VerifierKey,
    cosigned_bytes,
    decode_base64,
)
from tests.support.servers.receivers import Request, http_answer

SIZE = {"Content-Type": "text/x.tlog.size"}


@dataclass
class Witness:
    """Remembers what it cosigned; `faults` answer in its place, one request each."""

    name: str
    log: VerifierKey | None = None
    seen: Checkpoint | None = None
    faults: list[Callable[[Request], bytes | None]] = field(default_factory=list)
    key: Ed25519PrivateKey = field(default_factory=Ed25519PrivateKey.generate)
    asked: int = 0

    @property
    def vkey(self) -> VerifierKey:
        return VerifierKey.ed25519(self.name, self.key.public_key().public_bytes_raw(), COSIGNATURE)

    @property
    def size(self) -> int:
        return 0 if self.seen is None else self.seen.size

    def answer(self, request: Request) -> bytes | None:
        """Answer as the specification says, unless it has a fault to show."""
        self.asked += 1
        if self.faults:
            return self.faults.pop(0)(request)
        assert (request.method, request.path) == ("POST", "/prefix/add-checkpoint")
        head, _, note = request.body.partition(b"\n\n")
        old, *proof = head.decode().split("\n")
        assert self.log is not None
        found = checkpoints.read(note, self.log)
        old_size = int(old.removeprefix("old "))
        if old_size > found.size:
            return http_answer(400)
        if old_size != self.size:
            return http_answer(409, f"{self.size}\n".encode(), SIZE)
        if self.seen is not None:
            if old_size == found.size and self.seen.root != found.root:
                return http_answer(409, f"{self.size}\n".encode(), SIZE)
            path = [decode_base64(line) for line in proof]
            try:
                merkle.verify_consistency(old_size, found.size, path, self.seen.root, found.root)
            except ProofRefused:
                return http_answer(422)
        self.seen = found
        return http_answer(200, f"{self.cosign(found.text)}\n".encode())

    def cosign(self, text: str, seconds: int | None = None) -> Signature:
        """Cosign a note's text."""
        at = int(time.time()) if seconds is None else seconds
        signed = self.key.sign(cosigned_bytes(text, at))
        return Signature(self.name, self.vkey.key_hash, at.to_bytes(8, "big") + signed)
