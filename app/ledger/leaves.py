"""The content of the log's leaves, as canonical JSON.

The log is public and permanent, so a leaf names no tenant and no record: hashes only, in lower-case
hex.
"""

import re
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from app.ledger.merkle import HASH_BYTES
from app.ledger.notes import Checkpoint
from app.lib import canonical_json

SALT_BYTES = 32

_AT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", re.ASCII)
_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Record:
    """Commits to a record: the SHA-256 (32 bytes) of its bundle."""

    bundle_sha256: bytes

    def __post_init__(self) -> None:
        _check_hash(self.bundle_sha256)

    @property
    def data(self) -> bytes:
        """The leaf's data."""
        return canonical_json.dumps({"type": "record", "bundle_sha256": self.bundle_sha256.hex()})


@dataclass(frozen=True)
class SessionStatement:
    """Commits to a completed session: the SHA-256 (32 bytes) of its statement."""

    statement_sha256: bytes

    def __post_init__(self) -> None:
        _check_hash(self.statement_sha256)

    @property
    def data(self) -> bytes:
        """The leaf's data."""
        digest = self.statement_sha256.hex()
        return canonical_json.dumps({"type": "session", "statement_sha256": digest})


@dataclass(frozen=True)
class AuditHead:
    """Commits to the head of an audit chain at a time (RFC 3339, UTC, microseconds, `Z`).

    `chain` is `chain_name` of the tenant's salt; `hash` is that of the chain's entry `seq`.
    """

    chain: bytes
    seq: int
    hash: bytes
    at: str

    def __post_init__(self) -> None:
        _check_hash(self.chain)
        _check_hash(self.hash)
        if type(self.seq) is not int or self.seq < 1:
            raise ValueError("The entries of an audit chain are numbered from 1.")
        if type(self.at) is not str or not _AT.fullmatch(self.at):
            raise ValueError("A time in a leaf is in UTC, with microseconds and Z.")

    @property
    def data(self) -> bytes:
        """The leaf's data."""
        members = {"chain": self.chain.hex(), "seq": self.seq, "hash": self.hash.hex()}
        return canonical_json.dumps({"type": "audit-head", **members, "at": self.at})


@dataclass(frozen=True)
class LogSuccessor:
    """The first leaf of a log that goes on after another: the other's last checkpoint."""

    checkpoint: Checkpoint

    @property
    def data(self) -> bytes:
        """The leaf's data."""
        old = self.checkpoint
        members = {"origin": old.origin, "size": old.size, "root": old.root.hex()}
        return canonical_json.dumps({"type": "log-successor", **members})


Leaf = Record | SessionStatement | AuditHead | LogSuccessor


def chain_name(salt: bytes) -> bytes:
    """Return what an audit chain is called in the log, from its tenant's 32 bytes of salt."""
    if len(salt) != SALT_BYTES:
        raise ValueError(f"A salt has {SALT_BYTES} bytes, not {len(salt)}.")
    return sha256(b"audit-chain:" + salt).digest()


def parse(data: bytes) -> Leaf:
    """Read a leaf's data. Raises ValueError unless it is exactly what one of these would write."""
    leaf: Leaf
    members: Any = canonical_json.parse(data)
    match members:
        case {"type": "record", "bundle_sha256": digest}:
            leaf = Record(_hash(digest))
        case {"type": "session", "statement_sha256": digest}:
            leaf = SessionStatement(_hash(digest))
        case {"type": "audit-head", "chain": chain, "seq": seq, "hash": digest, "at": at}:
            leaf = AuditHead(_hash(chain), seq, _hash(digest), at)
        case {"type": "log-successor", "origin": str(origin), "size": size, "root": root} if (
            type(size) is int
        ):
            leaf = LogSuccessor(Checkpoint(origin, size, _hash(root)))
        case _:
            raise ValueError("It is no leaf, by its type or its members.")
    if leaf.data != data:
        raise ValueError("The leaf has other members, or is not canonical JSON.")
    return leaf


# As AuditHead.data writes it, and nothing else: a log holds millions, most of other kinds.
_audit_head_bytes = re.compile(
    rb'\{"at":"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z)","chain":"([0-9a-f]{64})",'
    rb'"hash":"([0-9a-f]{64})","seq":([1-9][0-9]{0,15}),"type":"audit-head"\}'
).fullmatch


def audit_head(data: bytes) -> AuditHead | None:
    """Read a leaf's data if it is exactly an audit head; None for everything else."""
    found = _audit_head_bytes(data)
    if found is None or int(found[4]) > canonical_json.MAX_INTEGER:
        return None
    chain, head = (bytes.fromhex(each.decode()) for each in found.group(2, 3))
    return AuditHead(chain, int(found[4]), head, found[1].decode())


def _hash(value: Any) -> bytes:
    if not isinstance(value, str) or not _HASH.fullmatch(value):
        raise ValueError("A hash in a leaf is 64 digits of hex in lower case.")
    return bytes.fromhex(value)


def _check_hash(value: bytes) -> None:
    if len(value) != HASH_BYTES:
        raise ValueError(f"A hash has {HASH_BYTES} bytes, not {len(value)}.")
