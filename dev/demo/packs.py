"""An auditor's offline check, by `verify.py` alone.

A trusted copy of it runs in a folder with only what is checked and the service's public keys.
"""

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

import requests

from dev.demo.scene import Scene, Unmet, anonymously

_TRUSTED = (Path(__file__).parents[2] / "app" / "evidence" / "verify.py").read_bytes()
_TIMEOUT_SECONDS = 60


def a_pack_for_an_auditor(scene: Scene, record_id: str, share_url: str) -> None:
    """Fetch the record's evidence pack by a share link, and verify it offline."""
    telling, base_url = scene.telling, scene.base_url
    token = urlsplit(share_url).path.rpartition("/")[2]
    url = f"{base_url}/v1/records/{record_id}/evidence.zip?share_token={token}"
    answers: list[requests.Response] = []

    def is_there() -> bool:
        answers.append(anonymously(url))
        if answers[-1].status_code not in (200, 202):
            raise Unmet(f"the pack is answered well (it was {answers[-1].status_code})")
        return answers[-1].status_code == 200

    scene.wait_for("the pack is built", is_there)
    pack = answers[-1]
    telling.claim(
        pack.content[:4] == b"PK\3\4" and pack.headers["x-service-evidence"] == "current",
        f"the link alone gets the evidence pack: one ZIP of {len(pack.content)} bytes",
    )
    telling.claim(
        anonymously(f"{base_url}/verify.py").content == _TRUSTED,
        "the service serves the verify.py that this checkout has, byte for byte",
    )
    # An auditor has the keys from elsewhere; here they are what the service publishes.
    keys = anonymously(f"{base_url}/.well-known/jwks.json").content
    options = ["pack.zip", "--strict", "--key", "keys.json"]
    code, lines = _verify(scene, {"pack.zip": pack.content, "keys.json": keys}, options)
    telling.claim(
        code == 0,
        "verify.py --strict, alone with the pack and the public keys, verifies it:",
        lines,
    )
    for line in lines:
        telling.say(f"    {line}")
    spoiled = pack.content.replace(b'"records/bundle/v2"', b'"records/bundle/v3"')
    code, lines = _verify(scene, {"pack.zip": spoiled, "keys.json": keys}, options)
    telling.claim(
        spoiled != pack.content and code == 1 and "bundle.json" in "\n".join(lines),
        "with one character of the bundle changed it refuses the pack, and names bundle.json",
        lines,
    )


def verified_export(scene: Scene, export: bytes, chain: str) -> tuple[int, list[str]]:
    """Hold an export of the audit chain to the chain's name; return the exit code and lines."""
    anchors = json.dumps(scene.api.get("/v1/audit/anchors")).encode()
    options = ["audit", "chain.ndjson", "--anchors", "anchors.json", "--chain", chain]
    return _verify(scene, {"chain.ndjson": export, "anchors.json": anchors}, options)


def _verify(scene: Scene, files: dict[str, bytes], arguments: list[str]) -> tuple[int, list[str]]:
    """Run verify.py with no environment, no packages and no folder but one with these files.

    Beside them are the log's key and, where an authority stamps, its roots.
    """
    log_key = anonymously(f"{scene.base_url}/v1/log/key").text.strip()
    files = {
        **files,
        "verify.py": _TRUSTED,
        "policy": f"log {log_key}\nquorum none\n".encode("ascii"),
    }
    arguments = [*arguments, "--policy", "policy"]
    if scene.tsa_ca_file is not None:
        files["tsa-ca.pem"] = scene.tsa_ca_file.read_bytes()
        arguments += ["--tsa-ca", "tsa-ca.pem"]
    with TemporaryDirectory(prefix="record-service-audit-") as folder:
        for name, content in files.items():
            Path(folder, name).write_bytes(content)
        done = subprocess.run(  # noqa: S603  # this Python, with files of ours
            [sys.executable, "-I", "-S", "verify.py", *arguments],
            cwd=folder,
            env={},
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
    return done.returncode, (done.stdout + done.stderr).splitlines()
