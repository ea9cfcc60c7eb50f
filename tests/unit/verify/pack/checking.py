"""Packs that are changed, and the verdict of `verify.py` on them."""

import hashlib
import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from app.evidence import pack
from app.evidence.pack.archive import Archive, of_bytes
from app.lib import canonical_json
from tests.support.evidence.verifying import Answer, answer
from tests.unit.verify import packs

EVIDENCE = packs.evidence(witnesses=[9, 10])
PACK = b"".join(pack.write(EVIDENCE))
POLICY = f"""log {packs.LOG.verifier_key}
witness a {packs.witness_key(9)}
witness b {packs.witness_key(10)}
witness c {packs.witness_key(11)}
group g 2 a b c
quorum g
"""


def checked(folder: Path, data: bytes, *arguments: object) -> Answer:
    (folder / "pack.zip").write_bytes(data)
    return answer(folder / "pack.zip", *arguments)


def files_of(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {each: archive.read(each) for each in archive.namelist()}


def unzipped(folder: Path, data: bytes = PACK) -> Path:
    """Return the folder into which a pack was extracted."""
    zipfile.ZipFile(io.BytesIO(data)).extractall(folder / "unzipped")
    return folder / "unzipped"


def zipped(files: dict[str, bytes]) -> bytes:
    """A ZIP as our writer makes it, of whatever files."""
    return b"".join(Archive(of_bytes(name, data) for name, data in files.items()))


def resealed(files: dict[str, bytes], key: Any = packs.KEY, **manifest: Any) -> bytes:
    """A pack of these files whose sums and manifest are right, and signed by this key."""
    files = {name: data for name, data in files.items() if not name.startswith("SHA256SUMS")}
    told = json.loads(files.pop("manifest.json")) | manifest
    lines = [f"{hashlib.sha256(files[name]).hexdigest()}  {name}\n" for name in sorted(files)]
    files["SHA256SUMS"] = "".join(lines).encode()
    files["SHA256SUMS.sig"] = key.sign(files["SHA256SUMS"])
    told["files"] = {
        name: {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
        for name, data in files.items()
    }
    return zipped(files | {"manifest.json": canonical_json.dumps(told)})


TOLD = ["prov.json", "findings.json", "record.html", "README.txt", "release"]
"""What nothing but the signature of whoever packed speaks for."""
UNKNOWN_PACKER = "THE BUNDLE IS BY YOUR KEY, WHO PACKED IT IS NOT KNOWN"


def anchor_with(change: Callable[[dict[str, Any]], object]) -> bytes:
    value = json.loads(files_of(PACK)["anchor.json"])
    change(value)
    return canonical_json.dumps(value)


def in_proof(**changes: Any) -> bytes:
    return anchor_with(lambda value: value["log_proof"].update(changes))
