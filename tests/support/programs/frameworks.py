"""An environment with the packages of agent frameworks, as `frameworks.txt` pins them.

They are no dependencies of this project, and would hold its own to older versions. It lies in a
cache, under the digest of its requirements. `frameworks.txt` is written by
`uv pip compile --universal --generate-hashes` from the packages that docs/agents.md installs.
"""

import re
import subprocess
import sys
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
