"""What the command remembers on this machine: where, and under whose name.

`$XDG_STATE_HOME/record-service`, by default `~/.local/state/record-service`; only its owner can
read it.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from contextlib import closing
from pathlib import Path

from record_service.errors import RecordsError


def folder() -> Path:
    """Return the folder, which exists from then on. Raises OSError where it cannot be made."""
    home = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    found = Path(home) / "record-service"
    found.mkdir(mode=0o700, parents=True, exist_ok=True)
    return found


def name(*parts: str) -> str:
    """Return a file's name for a service, a tenant and what else tells it apart."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


def database(file: str, schema: str, *, alone: bool = False) -> sqlite3.Connection:
    """Open a database of the folder, which commits each statement by itself.

    `alone` keeps all other processes out until it is closed or this process ends. Raises
    `RecordsError` while another is in it.
    """
    path = folder() / file
    path.touch(mode=0o600)
    opened = sqlite3.connect(path, timeout=0 if alone else 30, isolation_level=None)
    try:
        if alone:
            opened.execute("PRAGMA locking_mode=EXCLUSIVE")
        opened.execute("PRAGMA journal_mode=WAL")
        opened.execute("PRAGMA synchronous=NORMAL")
        with closing(opened.execute("BEGIN IMMEDIATE")):
            opened.execute(schema)
            opened.execute("COMMIT")
    except sqlite3.OperationalError as error:
        opened.close()
        if "locked" in str(error):
            raise RecordsError("Another process does just this already: end it first.") from None
        raise RecordsError(f"{path}: {error}.") from None
    return opened
