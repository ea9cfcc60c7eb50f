"""Verifying evidence with the `verify.py` of this package, never with that of a pack.

The program runs in a process of its own, isolated (`-I -S`), and opens no connection.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_STATUSES = ("VALID", "NOT CHECKED", "INCOMPLETE", "INVALID")


@dataclass(frozen=True)
class Verdict:
    """What `verify.py` said, line by line, and its exit code (0: nothing is wrong)."""

    code: int
    lines: Sequence[str]

    @property
    def checks(self) -> list[dict[str, str]]:
        """Each check: its `status` and what was found."""
        found = []
        for line in self.lines:
            status = next((each for each in _STATUSES if line.startswith(f"{each} ")), None)
            if status is not None:
                found.append({"status": status, "detail": line[len(status) :].strip()})
        return found


def source() -> Path:
    """Return where `verify.py` is: in the installed package, or in the checkout."""
    here = Path(__file__).resolve()
    installed = here.parent / "verify.py"
    return installed if installed.exists() else here.parents[2] / "app" / "evidence" / "verify.py"


def verify(*arguments: str) -> Verdict:
    """Run `verify.py` with these arguments."""
    done = subprocess.run(  # noqa: S603  # our own program
        [sys.executable, "-I", "-S", str(source()), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    return Verdict(done.returncode, done.stdout.decode("utf-8", "replace").splitlines())
