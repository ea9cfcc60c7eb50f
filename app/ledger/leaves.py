"""The content of the log's leaves, as canonical JSON.

The log is public and permanent, so a leaf names no tenant and no record: hashes only, in lower-case
hex.
"""

import re
from hashlib import sha256
from typing import NamedTuple

from app.ledger.merkle import HASH_BYTES
from app.ledger.notes import Checkpoint
from app.lib import canonical_json

SALT_BYTES = 32
# As they are written here, and nothing else: a log holds millions, most of one kind.
_HASHED = re.compile(
    rb'\{("bundle_sha256":"[0-9a-f]{64}","type":"record"'
    rb'|"statement_sha256":"[0-9a-f]{64}","type":"session")\}'
).fullmatch
_AUDIT_HEAD = re.compile(
    rb'\{"at":"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z)","chain":"([0-9a-f]{64})",'
    rb'"hash":"([0-9a-f]{64})","seq":([1-9][0-9]{0,15}),"type":"audit-head"\}'
).fullmatch


def record(bundle_sha256: bytes) -> bytes:
    """Return a leaf that commits to a record: the SHA-256 (32 bytes) of its bundle."""
    return canonical_json.dumps({"type": "record", "bundle_sha256": _hex(bundle_sha256)})


def session(statement_sha256: bytes) -> bytes:
    """Return a leaf that commits to a session: the SHA-256 (32 bytes) of its statement."""
    return canonical_json.dumps({"type": "session", "statement_sha256": _hex(statement_sha256)})


def successor(old: Checkpoint) -> bytes:
    """Return the first leaf of a log that goes on after another: the other's last checkpoint."""
    members = {"origin": old.origin, "size": old.size, "root": _hex(old.root)}
    return canonical_json.dumps({"type": "log-successor", **members})


class AuditHead(NamedTuple):
    """Commits to the head of an audit chain at a time (RFC 3339, UTC, microseconds, `Z`).

    `chain` is `chain_name` of the tenant's salt; `hash` is that of the chain's entry `seq`.
    """

    chain: bytes
    seq: int
    hash: bytes
    at: str

    @property
    def data(self) -> bytes:
        """The leaf."""
        members = {"chain": _hex(self.chain), "seq": self.seq, "hash": _hex(self.hash)}
        return canonical_json.dumps({"type": "audit-head", **members, "at": self.at})


def audit_head(data: bytes) -> AuditHead | None:
    """Read a leaf if it is exactly an audit head; None for everything else."""
    found = _AUDIT_HEAD(data)
    if found is None or int(found[4]) > canonical_json.MAX_INTEGER:
        return None
    chain, head = (bytes.fromhex(each.decode()) for each in found.group(2, 3))
    return AuditHead(chain, int(found[4]), head, found[1].decode())


def may_wait(data: bytes) -> bool:
    """Say whether this is a leaf as the service has them wait for the log."""
    return _HASHED(data) is not None or audit_head(data) is not None


def chain_name(salt: bytes) -> bytes:
    """Return what an audit chain is called in the log, from its tenant's 32 bytes of salt."""
    if len(salt) != SALT_BYTES:
        raise ValueError(f"A salt has {SALT_BYTES} bytes, not {len(salt)}.")
    return sha256(b"audit-chain:" + salt).digest()


def _hex(digest: bytes) -> str:
    if len(digest) != HASH_BYTES:
        raise ValueError(f"A hash has {HASH_BYTES} bytes, not {len(digest)}.")
    return digest.hex()
