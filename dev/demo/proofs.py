"""What proves it: the record and the audit chain in the public log, and the books.

Checked from the answers alone, by libraries that are not ours (`cryptography`, `tlog-scales`), by
`hashlib`, and by `verify.py` in a folder of its own.
"""

import base64
import hashlib
import json
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from tlog_scales.signing import Vkey
from tlog_scales.tlog import Checkpoint, InclusionProof, InclusionProofInvalid

from dev.demo import packs
from dev.demo.scene import Scene, anonymously
from dev.demo.webhooks import Webhook

_COLUMNS = ("accepted", "succeeded", "failed", "cancelled", "pending")


def what_proves_it(scene: Scene, made: dict[str, Any]) -> None:
    """Check the record's signature, and its place in the public log."""
    telling, path, bundle = scene.telling, f"/v1/records/{made['id']}", made["bundle"]
    telling.chapter("What the agent did, signed")
    telling.say(f"{made['kind']}: {made['title']}")
    raw = scene.api.download(f"{path}/bundle")
    telling.claim(
        hashlib.sha256(raw).hexdigest() == bundle["sha256"]
        and _is_signed(scene.base_url, raw, bundle),
        f"its bundle ({len(raw)} bytes) is signed by the published key {bundle['key_id']}",
    )
    scene.wait_for(
        "the record is in the log",
        lambda: scene.api.get(path)["log"]["status"] == "integrated",
    )
    proof = scene.api.get(f"{path}/log-proof")
    leaf = {"type": "record", "bundle_sha256": bundle["sha256"]}
    telling.claim(
        json.loads(base64.b64decode(proof["leaf_data"])) == leaf
        and _is_included(scene.base_url, proof),
        f"it is leaf {proof['leaf_index']} of the public log; `tlog-scales`, which is not ours, "
        "verifies its inclusion and the log's signature",
        proof,
    )


def what_one_link_opens(scene: Scene, made: dict[str, Any]) -> None:
    """Share the record by a link without a key, then revoke it."""
    path = f"/v1/records/{made['id']}/share-links"
    scene.telling.chapter("One link for one auditor")
    link = scene.api.post(path, {"expires_in_seconds": 3600})
    opened = anonymously(link["url"])
    scene.telling.claim(
        opened.status_code == 200 and made["title"] in opened.text,
        "the link opens a page about this record, without a key",
    )
    packs.a_pack_for_an_auditor(scene, made["id"], link["url"])
    scene.api.delete(f"{path}/{link['id']}")
    closed = anonymously(link["url"])
    scene.telling.claim(
        closed.status_code == 404 and made["title"] not in closed.text,
        "revoked, it opens nothing, and does not say what it opened",
    )


def the_books(scene: Scene, *webhooks: Webhook) -> None:
    """Check the accounting of every webhook."""
    scene.telling.chapter("The books")
    rows: list[tuple[object, ...]] = [("", "", *_COLUMNS)]
    closed = True
    for webhook in webhooks:
        lines: dict[str, Any] = {}

        def nothing_pending(webhook: Webhook = webhook, lines: dict[str, Any] = lines) -> bool:
            books = scene.api.get(f"{webhook.path}/accounting")
            lines.update(events=books, replays=books["replays"], tests=books["tests"])
            return bool(books["balanced"]) and not any(line["pending"] for line in lines.values())

        scene.wait_for(f"the books of {webhook.receiver.name!r} close", nothing_pending)
        for name, line in lines.items():
            rows.append((webhook.receiver.name, name, *(line[column] for column in _COLUMNS)))
            closed &= line["accepted"] == sum(line[column] for column in _COLUMNS[1:])
    scene.telling.table(rows)
    scene.telling.claim(closed, "accepted = succeeded + failed + cancelled + pending on every line")


def what_holds_the_chain(scene: Scene) -> None:
    """Have the head anchored and the checkpoint stamped now, not in ten minutes; verify both."""
    scene.telling.chapter("The audit chain, and what holds it from outside")
    head = scene.api.get("/v1/audit?limit=1")["data"][0]

    def anchored() -> dict[str, Any]:
        """Return the first anchor that covers the head, once it has its proof; {} until then."""
        found = scene.api.get("/v1/audit/anchors")["data"]
        covers = (each for each in found if each["seq"] == head["seq"] and each["log_proof"])
        return next(covers, {})

    scene.now("anchor_audit")
    scene.wait_for("the head is in the log", anchored)
    anchor = anchored()
    leaf = json.loads(base64.b64decode(anchor["log_proof"]["leaf_data"]))
    scene.telling.claim(
        _is_included(scene.base_url, anchor["log_proof"])
        and (leaf["chain"], leaf["seq"], leaf["hash"])
        == (anchor["chain"], head["seq"], head["hash"]),
        f"entry {head['seq']} of the audit chain is in the public log, and `tlog-scales` verifies "
        "it; the leaf names no tenant",
        anchor,
    )
    if scene.tsa_ca_file is not None:
        scene.now("stamp_checkpoint")
        scene.wait_for("the checkpoint is stamped", lambda: anchored()["timestamp"])
        scene.telling.say("A timestamp authority has stamped the checkpoint.")
    else:
        scene.telling.say("No timestamp authority runs here: the log alone holds it.")
    export = scene.api.download("/v1/audit", "application/x-ndjson")
    code, lines = packs.verified_export(scene, export, anchor["chain"])
    scene.telling.claim(
        code == 0 and lines[-1].startswith("VALID, "),
        "verify.py audit verifies an export by the log's key and the chain's name, but for the "
        "last entries, which wait to be anchored",
        lines,
    )
    remade = export.replace(b'"key.revoke"', b'"key.remake"', 1)
    code, lines = packs.verified_export(scene, remade, anchor["chain"])
    scene.telling.claim(
        remade != export and code == 1, "with a single word of it changed it refuses it", lines
    )
    verified = scene.api.get("/v1/audit/verify", seq=head["seq"], hash=head["hash"])
    scene.telling.claim(verified["status"] == "intact", "the service, asked, agrees", verified)


def _is_signed(base_url: str, raw: bytes, bundle: dict[str, Any]) -> bool:
    published = anonymously(f"{base_url}/.well-known/jwks.json").json()["keys"]
    key = next(key for key in published if key["kid"] == bundle["key_id"])
    point = base64.urlsafe_b64decode(key["x"] + "=" * (-len(key["x"]) % 4))
    try:
        Ed25519PublicKey.from_public_bytes(point).verify(base64.b64decode(bundle["signature"]), raw)
    except InvalidSignature:
        return False
    return True


def _is_included(base_url: str, proof: dict[str, Any]) -> bool:
    """Say whether a log-proof shows its leaf in the log whose key is published."""
    key = Vkey.from_string(anonymously(f"{base_url}/v1/log/key").text.strip())
    checkpoint = Checkpoint.from_text(proof["checkpoint"])
    data = base64.b64decode(proof["leaf_data"])
    hashes = [bytes.fromhex(each) for each in proof["inclusion"]]
    try:
        # Without a signature by this key it raises RuntimeError.
        checkpoint.verify(key)
        InclusionProof(proof["leaf_index"], checkpoint.size, hashes).check(
            hashlib.sha256(b"\0" + data).digest(), checkpoint.root_hash
        )
    except (InclusionProofInvalid, InvalidSignature, RuntimeError):
        return False
    return True
