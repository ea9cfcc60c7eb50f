"""The audit chain's head in the public log, and the log's checkpoint at a timestamp authority.

Checked from the answers alone: the proof by `tlog-scales`, the export by `verify.py`.
"""

import base64
import json
from typing import Any

from dev.demo import packs
from dev.demo.records import is_included
from dev.demo.scene import Scene


def what_holds_the_chain(scene: Scene) -> None:
    """Have the head anchored and the checkpoint stamped now, not in ten minutes."""
    scene.telling.chapter("What holds the audit chain from outside")
    head = scene.api.get("/v1/audit?limit=1")["data"][0]
    scene.now("anchor_audit")
    scene.wait_for("the head is in the log", lambda: _anchor(scene, head))
    anchor = _anchor(scene, head)
    leaf = json.loads(base64.b64decode(anchor["log_proof"]["leaf_data"]))
    scene.telling.claim(
        is_included(scene.base_url, anchor["log_proof"])
        and (leaf["chain"], leaf["seq"], leaf["hash"])
        == (anchor["chain"], head["seq"], head["hash"]),
        f"entry {head['seq']} of the audit chain is in the public log, and `tlog-scales` verifies "
        "it; the leaf names no tenant",
        anchor,
    )
    if scene.is_stamped:
        scene.now("stamp_checkpoint")
        scene.wait_for("the checkpoint is stamped", lambda: _anchor(scene, head)["timestamp"])
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


def _anchor(scene: Scene, head: dict[str, Any]) -> dict[str, Any]:
    """Return the first anchor that covers the head, once it has its proof; {} until then."""
    found = scene.api.get("/v1/audit/anchors")["data"]
    return next((each for each in found if each["seq"] == head["seq"] and each["log_proof"]), {})
