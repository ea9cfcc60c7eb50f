"""An auditor's use of a share link: fetch the pack, verify it offline.

The pack is checked by `verify.py` alone, a trusted copy of it, in a folder that holds nothing else
but the pack and the service's public keys.
"""

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

import requests

from dev.demo.api import anonymously
from dev.demo.scene import Scene
from dev.demo.telling import Unmet

_TRUSTED = Path(__file__).parents[2] / "app" / "evidence" / "verify.py"
_TIMEOUT_SECONDS = 60


def a_pack_for_an_auditor(scene: Scene, record_id: str, share_url: str) -> None:
    """Fetch the record's evidence pack by a share link, and verify it offline."""
    telling, base_url = scene.telling, scene.base_url
    pack = _fetched(scene, record_id, share_url)
    telling.claim(
        pack.content[:4] == b"PK\3\4" and pack.headers["x-service-evidence"] == "current",
        f"the link alone gets the evidence pack: one ZIP of {len(pack.content)} bytes",
    )
    trusted = _TRUSTED.read_bytes()
    telling.claim(
        anonymously(f"{base_url}/verify.py").content == trusted,
        "the service serves the verify.py that this checkout has, byte for byte",
    )
    with TemporaryDirectory(prefix="record-service-audit-") as name:
        folder = Path(name)
        (folder / "verify.py").write_bytes(trusted)
        roots = _write_roots(folder, scene)
        code, lines = _verified(folder, pack.content, roots)
        telling.claim(
            code == 0,
            "verify.py --strict, alone with the pack and the public keys, verifies it:",
            lines,
        )
        for line in lines:
            telling.say(f"    {line}")
        spoiled = pack.content.replace(b'"records/bundle/v1"', b'"records/bundle/v2"')
        code, lines = _verified(folder, spoiled, roots)
        telling.claim(
            spoiled != pack.content and code == 1 and "bundle.json" in "\n".join(lines),
            "with one character of the bundle changed it refuses the pack, and names bundle.json",
            lines,
        )


def verified_export(scene: Scene, export: bytes, chain: str) -> tuple[int, list[str]]:
    """Run a trusted verify.py over an export of the audit chain, and hold it to the chain's name.

    Returns its exit code and lines.
    """
    with TemporaryDirectory(prefix="record-service-audit-") as name:
        folder = Path(name)
        (folder / "verify.py").write_bytes(_TRUSTED.read_bytes())
        (folder / "chain.ndjson").write_bytes(export)
        options = ["--chain", chain, *_write_policy(folder, scene)]
        return _verifier(folder, "audit", "chain.ndjson", *options)


def _fetched(scene: Scene, record_id: str, share_url: str) -> requests.Response:
    """Ask until the pack is there, as the answers say."""
    token = urlsplit(share_url).path.rpartition("/")[2]
    url = f"{scene.base_url}/v1/records/{record_id}/evidence.zip?share_token={token}"
    answers: list[requests.Response] = []

    def is_there() -> bool:
        answers.append(anonymously(url))
        if answers[-1].status_code not in (200, 202):
            raise Unmet(f"the pack is answered well (it was {answers[-1].status_code})")
        return answers[-1].status_code == 200

    scene.wait_for("the pack is built", is_there)
    return answers[-1]


def _write_roots(folder: Path, scene: Scene) -> list[str]:
    """Write whom to believe: the keys that sign here, and the log's; return options that say so.

    An auditor has these from elsewhere; here they are what the service publishes.
    """
    (folder / "keys.json").write_bytes(
        anonymously(f"{scene.base_url}/.well-known/jwks.json").content
    )
    return ["--strict", "--key", "keys.json", *_write_policy(folder, scene)]


def _write_policy(folder: Path, scene: Scene) -> list[str]:
    """Write the log's key, and the authority's roots if one stamps; return options that say so."""
    log_key = anonymously(f"{scene.base_url}/v1/log/key").text.strip()
    (folder / "policy").write_text(f"log {log_key}\nquorum none\n", "ascii")
    if scene.tsa_ca_file is None:
        return ["--policy", "policy"]
    (folder / "tsa-ca.pem").write_bytes(scene.tsa_ca_file.read_bytes())
    return ["--policy", "policy", "--tsa-ca", "tsa-ca.pem"]


def _verified(folder: Path, pack: bytes, roots: list[str]) -> tuple[int, list[str]]:
    (folder / "pack.zip").write_bytes(pack)
    return _verifier(folder, "pack.zip", *roots)


def _verifier(folder: Path, *arguments: str) -> tuple[int, list[str]]:
    """Run verify.py with no environment, no packages and no folder but this one."""
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
