"""Exports of an audit chain with anchors, and the verdict on them."""

from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from app.ledger import hash_chain, leaves, merkle
from app.ledger.notes import Checkpoint
from app.lib import canonical_json
from tests.support.evidence.verifying import Answer, answer
from tests.unit.verify import packs

TENANT = packs.record()["tenant_id"]
CHAIN = leaves.chain_name(bytes(32))
AT = "2026-01-31T12:00:00.123456Z"
FORMER = 2
"""The entries up to here are from before entries had outcome and origin."""
DETAILS: Sequence[dict[str, Any]] = [
    {},
    {"hash": "00" * 32, "numbers": [0.5, 1e21, -3], "é": "\U00010000", "prev_hash": None},
    {"deep": {"hash": '"hash":"'}},
]


def entries(
    count: int, tenant: str = TENANT, *, last: str = "key.mint", at: str = AT
) -> list[dict[str, Any]]:
    """The entries of a chain, each with its hash; the last has this action."""
    made: list[dict[str, Any]] = []
    for seq in range(1, count + 1):
        fields = {
            "seq": seq,
            "at": at,
            "tenant_id": tenant,
            "actor": {"type": "operator", "id": None},
            "action": "tenant.create" if seq == 1 else last if seq == count else "key.mint",
            "target": {"type": "tenant", "id": tenant},
            "details": DETAILS[seq % 3],
            "request_id": None,
            **({"outcome": "success", "origin": None} if seq > FORMER else {}),
            "prev_hash": made[-1]["hash"] if made else hash_chain.GENESIS,
        }
        digest = sha256(canonical_json.dumps(fields)).hexdigest()
        made.append({**fields, "hash": digest})
    return made


def lines(made: Sequence[dict[str, Any]], anchors: Sequence[Any] = (), **trailer: Any) -> bytes:
    """An export, with a trailer as the service writes it, or with other members than that."""
    end = {"seq": made[-1]["seq"], "hash": made[-1]["hash"]} if made else {"seq": 0, "hash": ""}
    last = {
        "type": "trailer",
        "entries": len(made),
        "head": end,
        "anchors": list(anchors),
        "anchors_total": len(anchors),
    }
    return b"".join(canonical_json.dumps(each) + b"\n" for each in [*made, {**last, **trailer}])


def part_of(made: Sequence[dict[str, Any]], anchors: Sequence[Any] = (), **trailer: Any) -> bytes:
    """The export of a range: its trailer says what its entries follow."""
    after = {"seq": made[0]["seq"] - 1, "hash": made[0]["prev_hash"]}
    return lines(made, anchors, **{"after": after, **trailer})


def anchor(
    entry: dict[str, Any], *, witnesses: Sequence[int] = (), chain: bytes = CHAIN, **other: Any
) -> dict[str, Any]:
    """An anchor of an entry in a log of seven leaves."""
    at = "2026-01-31T13:00:00.000000Z"
    leaf = leaves.AuditHead(chain, entry["seq"], bytes.fromhex(entry["hash"]), at)
    hashes = [merkle.leaf_hash(b"%d" % number) for number in range(6)]
    hashes.insert(2, merkle.leaf_hash(leaf.data))
    path = merkle.inclusion_proof(
        2, 7, lambda level, number: merkle.root(hashes[number << level : (number + 1) << level])
    )
    note = Checkpoint(packs.ORIGIN, 7, merkle.root(hashes)).sign(packs.LOG)
    return {
        "seq": entry["seq"],
        "hash": entry["hash"],
        "at": at,
        "chain": chain.hex(),
        "log_proof": {
            "leaf_index": 2,
            "leaf_data": b64encode(leaf.data).decode(),
            "leaf_hash": hashes[2].hex(),
            "tree_size": 7,
            "inclusion": [each.hex() for each in path],
            "checkpoint": str(note),
        },
        "vkey": str(packs.LOG.verifier_key),
        "timestamp": None,
        "tsa_chain": None,
        "cosignatures": [str(packs.cosign(number, note.text)) for number in witnesses],
        **other,
    }


MADE = entries(7)
HEAD = f"7:{MADE[-1]['hash']}"
NAMED = ["--chain", CHAIN.hex()]
NOBODYS = "WHOSE CHAIN THIS IS, IS NOT KNOWN"


def checked(folder: Path, data: bytes, *arguments: object) -> Answer:
    (folder / "chain.ndjson").write_bytes(data)
    return answer("audit", folder / "chain.ndjson", *arguments)


WAITS: dict[str, Any] = {
    "log_proof": None,
    "vkey": None,
    "timestamp": None,
    "tsa_chain": None,
    "cosignatures": [],
}


def hashed(fields: dict[str, Any]) -> dict[str, Any]:
    fields = {name: value for name, value in fields.items() if name != "hash"}
    return {**fields, "hash": sha256(canonical_json.dumps(fields)).hexdigest()}
