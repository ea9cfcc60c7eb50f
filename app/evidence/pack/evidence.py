"""The evidence of a pack; evidence that a verifier would refuse is left out."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from hashlib import sha256

from app.evidence.pack.archive import Chunks
from app.evidence.signing_certificates import SigningChain
from app.evidence.timestamps import Stamp
from app.ledger import leaves, merkle, notes
from app.ledger.notes import Checkpoint, Note, Signature, VerifierKey, encode_base64
from app.lib.crypto.signing import PublicKey, SigningKey

MAX_BUNDLE_BYTES = 16 * 2**20
MAX_FILE_BYTES = 2**20
"""Limits of `verify.py` on a bundle, and on each other file but PROV."""

FURTHER: Mapping[str, Sequence[str]] = {
    "findings": ("findings.json",),
    "session": ("session-proof.json", "session-statement.json", "session-statement.sig"),
    "session key": ("session-key.pem",),
}
"""What a pack may hold besides what each has, by group: the files of one come together."""

_RELEASE = re.compile(r"[!-~]{1,64}")
_TLOG_PROOF = "c2sp.org/tlog-proof@v1"
_CERTIFICATE = "-----BEGIN CERTIFICATE-----"


class Inconsistent(ValueError):
    """These parts do not belong together, so no pack can be made of them."""


@dataclass(frozen=True, kw_only=True)
class Proven:
    """What stands in the log, its proof, and who packs it: the inputs that all packs have.

    `base_url` is the service's, without a slash at its end, and `release` its version. `pack_key`
    signs the pack. `public_key` made `signature`, its 64 bytes, over `signed`; `chain` are its
    certificates, of which `signing-chain.pem` is made. `checkpoint` is the note as published, with
    the log's own signature only; `leaf_index` and `path` say where in that tree the leaf is.
    `cosignatures` are lines by others on the same checkpoint; `timestamp` is of its bytes, with the
    root among its certificates.
    """

    signature: bytes
    public_key: PublicKey
    pack_key: SigningKey
    base_url: str
    release: str
    log_key: VerifierKey
    checkpoint: bytes
    leaf_index: int
    path: Sequence[bytes]
    cosignatures: Sequence[Signature] = ()
    timestamp: Stamp | None = None
    chain: SigningChain | None = None

    @property
    def signed(self) -> bytes:
        """The bytes that were signed."""
        raise NotImplementedError

    @property
    def leaf_data(self) -> bytes:
        """The data of their leaf."""
        raise NotImplementedError

    @property
    def cosigned(self) -> Note:
        """The checkpoint with the cosignatures."""
        return Note.parse(self.checkpoint).with_signatures(self.cosignatures)

    @property
    def tlog_proof(self) -> bytes:
        """The leaf's proof, with the cosigned checkpoint (C2SP tlog-proof)."""
        lines = [_TLOG_PROOF, f"index {self.leaf_index}", *map(encode_base64, self.path), ""]
        return "".join(f"{line}\n" for line in lines).encode() + bytes(self.cosigned)

    @property
    def anchored_by(self) -> str:
        """What anchors the pack, in plain words."""
        others = []
        if self.timestamp is not None:
            others.append(f"a timestamp of {self.timestamp.time}")
        count = len(self.cosignatures)
        if count:
            others.append("one cosignature" if count == 1 else f"{count} cosignatures")
        if not others:
            return "the service's own log alone"
        return f"the service's own log, with {' and '.join(others)}"

    def check(self) -> Checkpoint:
        """Return the checkpoint. Raises Inconsistent, or what the readers of the parts raise."""
        if not self.public_key.verifies(self.signature, self.signed):
            raise Inconsistent("The signature is not by the key beside it.")
        checkpoint = notes.read_checkpoint(self.checkpoint, self.log_key)
        if len(Note.parse(self.checkpoint).signatures) != 1:
            raise Inconsistent("The checkpoint has more than the log's own signature.")
        if any(self.log_key.made(each) for each in self.cosignatures):
            raise Inconsistent("The log's own signature is no cosignature.")
        leaf = merkle.leaf_hash(self.leaf_data)
        merkle.verify_inclusion(leaf, self.leaf_index, checkpoint.size, self.path, checkpoint.root)
        if not _RELEASE.fullmatch(self.release):
            raise Inconsistent("A release is 1 to 64 visible characters of ASCII.")
        if self.timestamp is not None:
            _check_timestamp(self.timestamp)
        if self.chain is not None and self.chain.key != self.public_key:
            raise Inconsistent("The certificates are of another key than the bundle's.")
        return checkpoint


@dataclass(frozen=True, kw_only=True)
class Evidence(Proven):
    """All inputs of a record's pack: its bytes are a function of them.

    `bundle` are the stored bytes. `agent_name` is what the agent was called when the record was
    made, for a bundle of version 1 has its id alone. `further` are whole groups of FURTHER, by the
    files' names.
    """

    bundle: bytes
    agent_name: str
    further: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def signed(self) -> bytes:
        """The bundle."""
        return self.bundle

    @property
    def leaf_data(self) -> bytes:
        """The data of the record's leaf."""
        return leaves.record(sha256(self.bundle).digest())

    def check(self) -> Checkpoint:
        """Do what `Proven.check` does, and hold the bundle to its limit."""
        if len(self.bundle) > MAX_BUNDLE_BYTES:
            raise Inconsistent(f"A bundle in a pack has up to {MAX_BUNDLE_BYTES} bytes.")
        groups = [names for names in FURTHER.values() if self.further.keys() & names]
        if self.further.keys() != {name for names in groups for name in names}:
            raise Inconsistent("A pack has other further files, and those of a group together.")
        if max(map(len, self.further.values()), default=0) > MAX_BUNDLE_BYTES:
            raise Inconsistent(f"A further file has up to {MAX_BUNDLE_BYTES} bytes.")
        return super().check()


@dataclass(frozen=True, kw_only=True)
class SessionEvidence(Proven):
    """All inputs of a sealed session's pack.

    `statement` is as it was signed. The files `digests`, `records`, `bundles` and `findings` are
    functions that yield their bytes, the same each time: docs/formats.md says what each holds.
    `keys` are those that signed the bundles.
    """

    statement: bytes
    keys: Sequence[PublicKey]
    digests: Chunks
    records: Chunks
    bundles: Chunks
    findings: Chunks

    @property
    def signed(self) -> bytes:
        """The statement."""
        return self.statement

    @property
    def leaf_data(self) -> bytes:
        """The data of the statement's leaf."""
        return leaves.session(sha256(self.statement).digest())


def _check_timestamp(timestamp: Stamp) -> None:
    if not timestamp.time.endswith("Z") or timestamp.gen_time.utcoffset() != timedelta(0):
        raise Inconsistent("The time of a timestamp is in UTC.")
    if max(len(timestamp.response), len(timestamp.chain.encode())) > MAX_FILE_BYTES:
        raise Inconsistent(f"A timestamp and its chain have up to {MAX_FILE_BYTES} bytes each.")
    if not timestamp.response or _CERTIFICATE not in timestamp.chain:
        raise Inconsistent("A timestamp has a response, and certificates in PEM.")
