"""`anchor.json`: a record's index in the log, with timestamps and cosignatures."""

from base64 import b64encode
from typing import Any

from app.evidence.bundle import Record
from app.evidence.pack.evidence import Evidence
from app.ledger import merkle
from app.ledger.checkpoints import Checkpoint
from app.lib import canonical_json
from app.lib.crypto.timestamps import Stamp

SCHEMA = "records/anchor/v2"


def write(evidence: Evidence, checkpoint: Checkpoint, record: Record) -> bytes:
    """Return the canonical JSON of the file."""
    leaf = evidence.leaf_data
    return canonical_json.dumps(
        {
            "schema": SCHEMA,
            "release": evidence.release,
            "agent": agent_json(evidence, record),
            "anchored_by": sentence(evidence),
            "vkey": str(evidence.log_key),
            "log_proof": {
                "leaf_index": evidence.leaf_index,
                "leaf_data": b64encode(leaf).decode("ascii"),
                "leaf_hash": merkle.leaf_hash(leaf).hex(),
                "tree_size": checkpoint.size,
                "inclusion": [each.hex() for each in evidence.path],
                "checkpoint": evidence.checkpoint.decode("utf-8"),
            },
            "cosignatures": [str(each) for each in evidence.cosignatures],
            "timestamp": timestamp_json(evidence.timestamp),
        }
    )


def agent_json(evidence: Evidence, record: Record) -> dict[str, str]:
    """Return the record's agent by its id, as the bundle has it, and the name it had then."""
    return {"id": record["agent_id"], "name": evidence.agent_name}


def sentence(evidence: Evidence) -> str:
    """Say in plain words what anchors the pack."""
    others = []
    if evidence.timestamp is not None:
        others.append(f"a timestamp of {evidence.timestamp.time}")
    count = len(evidence.cosignatures)
    if count:
        others.append("one cosignature" if count == 1 else f"{count} cosignatures")
    if not others:
        return "the service's own log alone"
    return f"the service's own log, with {' and '.join(others)}"


def timestamp_json(timestamp: Stamp | None) -> dict[str, Any] | None:
    """Return what is told of the timestamp: its time, with the digits sent, and its files."""
    if timestamp is None:
        return None
    return {
        "gen_time": timestamp.time,
        "response": "checkpoint.tsr",
        "chain": "tsa-chain.pem",
    }
