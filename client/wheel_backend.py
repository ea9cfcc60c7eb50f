"""Builds the wheel of the client, the same bytes each time (PEP 427, PEP 517).

pip calls `build_wheel`; the service calls `wheel` and serves what it returns. `verify.py`, which
checks evidence packs, has one source: that of the service, two folders up.
"""

from __future__ import annotations

import hashlib
import io
import sys
import zipfile
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).resolve().parent
PACKAGE = "record_service"
VERIFIER = HERE.parent / "app" / "evidence" / "verify.py"

_WHEEL = "Wheel-Version: 1.0\nGenerator: wheel_backend\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
# The earliest moment that a ZIP can tell: no file's own time makes another wheel.
_EPOCH = (1980, 1, 1, 0, 0, 0)


def wheel() -> tuple[str, bytes]:
    """Return the wheel's file name and its bytes. Raises OSError where a source is missing."""
    project = tomllib.loads((HERE / "pyproject.toml").read_text("utf-8"))["project"]
    stem = f"{project['name'].replace('-', '_')}-{project['version']}"
    info = f"{stem}.dist-info"
    files = {f"{PACKAGE}/{name}": content for name, content in sorted(_sources().items())}
    files[f"{info}/METADATA"] = _metadata(project).encode()
    files[f"{info}/WHEEL"] = _WHEEL.encode()
    files[f"{info}/entry_points.txt"] = _entry_points(project["scripts"]).encode()
    record = "".join(f"{name},{_digest(data)},{len(data)}\n" for name, data in files.items())
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    return f"{stem}-py3-none-any.whl", _zip(files)


def build_wheel(
    wheel_directory: str,
    config_settings: dict[str, Any] | None = None,
    metadata_directory: str | None = None,
) -> str:
    """Write the wheel into a folder; return its file name."""
    name, content = wheel()
    (Path(wheel_directory) / name).write_bytes(content)
    return name


def build_sdist(sdist_directory: str, config_settings: dict[str, Any] | None = None) -> str:
    """Refuse: a source archive of this folder alone would lack `verify.py`."""
    raise NotImplementedError("Build the wheel; the sources are those of the whole repository.")


def _sources() -> dict[str, bytes]:
    root = HERE / PACKAGE
    found = {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in root.rglob("*")
        if path.suffix in (".py", ".pyi") or path.name == "py.typed"
    }
    return {**found, "verify.py": VERIFIER.read_bytes()}


def _metadata(project: dict[str, Any]) -> str:
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {project['name']}",
        f"Version: {project['version']}",
        f"Summary: {project['description']}",
        f"License: {project['license']}",
        f"Requires-Python: {project['requires-python']}",
        *(f"Requires-Dist: {each}" for each in project["dependencies"]),
    ]
    return "\n".join(lines) + "\n"


def _entry_points(scripts: dict[str, str]) -> str:
    return "[console_scripts]\n" + "".join(f"{name} = {at}\n" for name, at in scripts.items())


def _digest(content: bytes) -> str:
    digest = urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"sha256={digest}"


def _zip(files: dict[str, bytes]) -> bytes:
    """Write a ZIP without compression, whose bytes would depend on the zlib that there is."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.create_system = 3
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, content)
    return buffer.getvalue()
