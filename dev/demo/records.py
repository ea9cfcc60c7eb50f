"""The record that the session leaves: its signature, its place in the log, and one link to it.

Checked by libraries that are not ours (`cryptography`, `tlog-scales`), from public routes.
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
from dev.demo.api import anonymously
from dev.demo.scene import Scene


def what_proves_it(scene: Scene, made: dict[str, Any]) -> None:
    """Check the record's signature, and its place in the public log."""
    telling, path = scene.telling, _path(made)
    telling.chapter("What the agent did, signed")
    telling.say(f"{made['kind']}: {made['title']}")
    raw = scene.api.download(f"{path}/bundle")
    telling.claim(
        hashlib.sha256(raw).hexdigest() == made["bundle"]["sha256"]
        and _is_signed(scene.base_url, raw, made["bundle"]),
        f"its bundle ({len(raw)} bytes) is signed by the published key {made['bundle']['key_id']}",
    )
    scene.wait_for("the record is in the log", lambda: _is_in_the_log(scene, path))
    proof = scene.api.get(f"{path}/log-proof")
    telling.claim(
        _is_proven(scene.base_url, made["bundle"]["sha256"], proof),
        f"it is leaf {proof['leaf_index']} of the public log; `tlog-scales`, which is not ours, "
        "verifies its inclusion and the log's signature",
        proof,
    )


def what_one_link_opens(scene: Scene, made: dict[str, Any]) -> None:
    """Share the record by a link without a key, then revoke it."""
    path = f"{_path(made)}/share-links"
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


def _path(made: dict[str, Any]) -> str:
    return f"/v1/records/{made['id']}"


def _is_in_the_log(scene: Scene, path: str) -> bool:
    return bool(scene.api.get(path)["log"]["status"] == "integrated")


def _is_signed(base_url: str, raw: bytes, bundle: dict[str, Any]) -> bool:
    published = anonymously(f"{base_url}/.well-known/jwks.json").json()["keys"]
    key = next(key for key in published if key["kid"] == bundle["key_id"])
    point = base64.urlsafe_b64decode(key["x"] + "=" * (-len(key["x"]) % 4))
    try:
        Ed25519PublicKey.from_public_bytes(point).verify(base64.b64decode(bundle["signature"]), raw)
    except InvalidSignature:
        return False
    return True


def _is_proven(base_url: str, sha256: str, proof: dict[str, Any]) -> bool:
    data = json.loads(base64.b64decode(proof["leaf_data"]))
    leaf = {"type": "record", "bundle_sha256": sha256}
    return bool(data == leaf) and is_included(base_url, proof)


def is_included(base_url: str, proof: dict[str, Any]) -> bool:
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
