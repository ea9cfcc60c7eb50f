"""The files of a pack, and which of them need others first."""

from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from importlib import resources

from app.evidence import bundle, prov
from app.evidence.bundle import Record
from app.evidence.pack import anchor, archive, manifest, readme
from app.evidence.pack.archive import Archive, Member, of_bytes
from app.evidence.pack.evidence import Evidence
from app.ledger.checkpoints import Checkpoint
from app.lib.crypto.timestamps import Stamp


def write(evidence: Evidence) -> Archive:
    """Return the evidence pack of a record: iterate it for the ZIP's bytes; `size` is how many.

    The same evidence gives the same bytes. PROV is written twice, once for its digest, and never
    held as a whole. Raises Inconsistent, or what the readers of its parts raise (all of them
    ValueErrors), for evidence that its reader would have to refuse.
    """
    checkpoint = evidence.check()
    read = bundle.read(evidence.bundle)
    digest = sha256(evidence.bundle).hexdigest()
    record = read["record"]

    def provenance() -> Iterator[bytes]:
        return prov.write(
            read, sha256=digest, base_url=evidence.base_url, agent_name=evidence.agent_name
        )

    summed = [
        archive.measure("prov.json", provenance),
        *(of_bytes(name, data) for name, data in _files(evidence, checkpoint, record).items()),
    ]
    members = [*summed, *_signed_sums(evidence, summed)]
    listed = manifest.write(evidence, checkpoint, record, members)
    return Archive([*members, of_bytes("manifest.json", listed)])


@cache
def verifier_source() -> bytes:
    """Return the bytes of `verify.py`, as they go into every pack of this release."""
    return resources.files("app.evidence").joinpath("verify.py").read_bytes()


def _files(evidence: Evidence, checkpoint: Checkpoint, record: Record) -> dict[str, bytes]:
    return {
        "README.txt": readme.write(evidence, checkpoint, record),
        "anchor.json": anchor.write(evidence, checkpoint, record),
        "bundle.json": evidence.bundle,
        "bundle.sig": evidence.signature,
        "checkpoint": evidence.checkpoint,
        "pack-key.pem": evidence.pack_key.public.pem,
        "public-key.pem": evidence.public_key.pem,
        "record.tlog-proof": evidence.tlog_proof,
        "verify.py": verifier_source(),
        **_timestamp_files(evidence.timestamp),
    }


def _timestamp_files(timestamp: Stamp | None) -> dict[str, bytes]:
    if timestamp is None:
        return {}
    return {"checkpoint.tsr": timestamp.response, "tsa-chain.pem": timestamp.chain.encode()}


def _signed_sums(evidence: Evidence, members: list[Member]) -> list[Member]:
    lines = manifest.sums(members)
    signature = evidence.pack_key.sign(lines)
    return [of_bytes("SHA256SUMS", lines), of_bytes("SHA256SUMS.sig", signature)]
