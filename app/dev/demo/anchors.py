"""The audit chain's head in the public log, and the log's checkpoint at a timestamp authority.

Checked from the answers alone: by programs that are not ours, `tlog-scales` and `openssl ts`, and
the export as an auditor would, by `verify.py`.
"""

import base64
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from app.dev.demo import packs
from app.dev.demo.records import is_included
from app.dev.demo.scene import Scene

_OPENSSL_SECONDS = 10


def what_holds_the_chain(scene: Scene) -> None:
    """Have the head anchored and the checkpoint stamped now, not in ten minutes."""
    scene.telling.chapter("What holds the audit chain from outside")
    head = scene.api.get("/v1/audit?limit=1")["data"][0]
    scene.now("anchor_audit")
    scene.wait_for("the head is in the log", lambda: _anchor(scene, head) is not None)
    anchor = _anchor(scene, head) or {}
    scene.telling.claim(
        is_included(scene.base_url, anchor["log_proof"])
        and _leaf(anchor) == (anchor["chain"], head["seq"], head["hash"]),
        f"entry {head['seq']} of the audit chain is in the public log, and `tlog-scales` verifies "
        "it; the leaf names no tenant",
        anchor,
    )
    if scene.is_stamped:
        _stamped(scene, head)
    else:
        scene.telling.say("No timestamp authority runs here: the log alone holds it.")
    code, lines = packs.verified_export(scene, scene.api.export("/v1/audit"), anchor["chain"])
    scene.telling.claim(
        code == 0 and lines[-1].startswith("VALID, "),
        "verify.py audit verifies an export by the log's key and the chain's name, but for the "
        "last entries, which wait to be anchored",
        lines,
    )


def _stamped(scene: Scene, head: dict[str, Any]) -> None:
    scene.now("stamp_checkpoint")
    scene.wait_for("the checkpoint is stamped", lambda: (_anchor(scene, head) or {})["timestamp"])
    anchor = _anchor(scene, head) or {}
    scene.telling.claim(
        _openssl_agrees(anchor),
        "a timestamp authority has stamped the checkpoint; `openssl ts -verify` says so",
        anchor,
    )


def _anchor(scene: Scene, head: dict[str, Any]) -> dict[str, Any] | None:
    """Return the first anchor that covers the head, once it has its proof."""
    found = scene.api.get("/v1/audit/anchors")["data"]
    covering = [each for each in found if each["seq"] == head["seq"] and each["log_proof"]]
    return covering[0] if covering else None


def _leaf(anchor: dict[str, Any]) -> tuple[str, int, str]:
    said = json.loads(base64.b64decode(anchor["log_proof"]["leaf_data"]))
    return said["chain"], said["seq"], said["hash"]


def _openssl_agrees(anchor: dict[str, Any]) -> bool:
    files = {
        "checkpoint": anchor["log_proof"]["checkpoint"].encode(),
        "checkpoint.tsr": base64.b64decode(anchor["timestamp"]),
        "tsa-chain.pem": anchor["tsa_chain"].encode(),
    }
    command = ["openssl", "ts", "-verify", "-data", "checkpoint", "-in", "checkpoint.tsr"]
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            Path(folder, name).write_bytes(content)
        said = subprocess.run(  # noqa: S603  # openssl, with names of ours
            [*command, "-CAfile", "tsa-chain.pem"],
            cwd=folder,
            capture_output=True,
            timeout=_OPENSSL_SECONDS,
            check=False,
        )
    return said.returncode == 0
