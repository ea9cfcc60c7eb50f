"""Prints uv as pip's hash-checking mode wants it: the version and hashes that `uv.lock` has.

`make` runs it before anything is installed, so it needs nothing but Python.
"""

import tomllib
from pathlib import Path

LOCK = Path(__file__).resolve().parents[1] / "uv.lock"


def requirement(lock: str) -> str:
    """Return the line of a requirements file; raises `ValueError` where the lock has no uv."""
    (uv,) = [package for package in tomllib.loads(lock)["package"] if package["name"] == "uv"]
    files = [*uv["wheels"], uv["sdist"]]
    return " ".join([f"uv=={uv['version']}", *(f"--hash={file['hash']}" for file in files)])


if __name__ == "__main__":
    print(requirement(LOCK.read_text("utf-8")))
