"""An environment with the packages of agent frameworks, as `frameworks.txt` pins them; an index.

They are no dependencies of this project, and would hold its own to older versions. It lies in a
cache, under the digest of its requirements. `frameworks.txt` is written by
`uv pip compile --universal --generate-hashes` from the packages that docs/agents.md installs.
"""

import re
import subprocess
import sys
import zipfile
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

from dev.stack import ROOT

_REQUIREMENTS = Path(__file__).with_suffix(".txt")
_CACHE = Path("~/.cache/record-service")


def python() -> Path:
    """Return the environment's Python, made at its first use."""
    digest = sha256(_REQUIREMENTS.read_bytes() + sys.version.encode()).hexdigest()[:16]
    home = _CACHE.expanduser() / f"frameworks-{digest}"
    if not home.exists():
        home.parent.mkdir(parents=True, exist_ok=True)
        # Under another name first: a run that is killed leaves no half of one.
        with TemporaryDirectory(dir=home.parent) as fresh:
            made = Path(fresh) / "made"
            _uv("venv", "--relocatable", "--python", sys.executable, str(made))
            into = ("--python", str(made / "bin" / "python"), "--require-hashes")
            _uv("pip", "install", *into, "--requirements", str(_REQUIREMENTS))
            made.rename(home)
    return home / "bin" / "python"


def pinned() -> set[str]:
    """Return the names of the packages in the environment."""
    return set(re.findall(r"^([a-z0-9-]+)==", _REQUIREMENTS.read_text(), re.MULTILINE))


def _uv(*arguments: str) -> None:
    command = [str(ROOT / ".venv" / "bin" / "uv"), "--no-config", *arguments, "--quiet"]
    subprocess.run(command, check=True)


CLIENT = "record-service-client"


def offered(index: Path) -> Path:
    """Offer a foreign package of the client's name, newer than ours, in an index (PEP 503)."""
    wheel = "record_service_client-9.9-py3-none-any.whl"
    info, folder = "record_service_client-9.9.dist-info", index / CLIENT
    folder.mkdir(parents=True)
    (folder / "index.html").write_text(f'<a href="{wheel}">{wheel}</a>')
    files = {
        "foreign.py": "",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {CLIENT}\nVersion: 9.9\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
    }
    with zipfile.ZipFile(folder / wheel, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return index
