"""`manifest.json` and `SHA256SUMS`: the files of a pack, for programs and `sha256sum -c`.

The sums are signed; the manifest follows from signed files.
"""

from collections.abc import Iterable

from app.evidence.bundle import Record
from app.evidence.pack import anchor
from app.evidence.pack.archive import Member
from app.evidence.pack.evidence import Evidence
from app.ledger.checkpoints import Checkpoint
from app.lib import canonical_json

SCHEMA = "records/manifest/v2"


def sums(members: Iterable[Member]) -> bytes:
    """Return the lines of `SHA256SUMS` over these files, sorted by name."""
    ordered = sorted(members, key=lambda each: each.name)
    return "".join(f"{each.sha256}  {each.name}\n" for each in ordered).encode("ascii")


def write(
    evidence: Evidence, checkpoint: Checkpoint, record: Record, members: Iterable[Member]
) -> bytes:
    """Return the canonical JSON of the file; `members` are all files but itself."""
    return canonical_json.dumps(
        {
            "schema": SCHEMA,
            "record_id": record["id"],
            "agent": anchor.agent_json(evidence, record),
            "release": evidence.release,
            "pack_key_id": evidence.pack_key.public.id,
            "checkpoint": {
                "origin": checkpoint.origin,
                "size": checkpoint.size,
                "root": checkpoint.root.hex(),
            },
            "files": {each.name: {"sha256": each.sha256, "size": each.size} for each in members},
        }
    )
