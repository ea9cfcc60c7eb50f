"""A witness of the tests' own: C2SP tlog-witness over HTTP, with its own keys and memory."""

import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA44PrivateKey

from app.ledger import merkle, notes
from app.ledger.merkle import ProofRefused
from app.ledger.notes import (
    COSIGNATURE,
    ML_DSA_44,
    Checkpoint,
    Signature,
    VerifierKey,
    cosigned_bytes,
    decode_base64,
    key_hash,
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
        found = notes.read_checkpoint(note, self.log)
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


class QuantumWitness(Witness):
    """A witness that cosigns by ML-DSA-44 as well, in a line of its own."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.quantum_key = MLDSA44PrivateKey.generate()

    @property
    def quantum_vkey(self) -> VerifierKey:
        public = self.quantum_key.public_key().public_bytes_raw()
        hashed = key_hash(self.name, ML_DSA_44, public)
        return VerifierKey(self.name, hashed, ML_DSA_44, public)

    def answer(self, request: Request) -> bytes | None:
        answer = super().answer(request)
        if self.seen is None or answer is None or not answer.startswith(b"HTTP/1.1 200"):
            return answer
        lines = [self.cosign(self.seen.text), self.quantum(self.seen)]
        return http_answer(200, "".join(f"{line}\n" for line in lines).encode())

    def quantum(self, seen: Checkpoint, seconds: int | None = None) -> Signature:
        """Cosign a checkpoint: the message written out from C2SP tlog-cosignature."""
        at = int(time.time()) if seconds is None else seconds
        name, origin = self.name.encode(), seen.origin.encode()
        message = struct.pack(
            f">12sB{len(name)}sQB{len(origin)}sQQ32s",
            *(b"subtree/v1\n\0", len(name), name, at, len(origin), origin, 0, seen.size, seen.root),
        )
        payload = at.to_bytes(8, "big") + self.quantum_key.sign(message)
        return Signature(self.name, self.quantum_vkey.key_hash, payload)
