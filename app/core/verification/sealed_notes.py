"""Sealed notes: what the daily run found, which the database's owner cannot write.

An older note can be put back: each names when its run began.
"""

import json
from typing import Any

from sqlalchemy.orm import Session

from app.database import cursor
from app.lib import canonical_json
from app.lib.crypto.sealing import CannotOpen, MasterKeys

_WRITE = """
INSERT INTO sealed_notes (name, sealed) VALUES (%s, %s)
ON CONFLICT (name) DO UPDATE SET sealed = excluded.sealed
"""
_READ = "SELECT sealed FROM sealed_notes WHERE name = %s"


def write(session: Session, master_keys: MasterKeys, name: str, note: Any) -> None:
    """Keep a note, which is JSON, in the place of the one before."""
    sealed = master_keys.seal(canonical_json.dumps(note), identity(name))
    cursor(session).execute(_WRITE, (name, sealed))


def read(session: Session, master_keys: MasterKeys, name: str) -> Any:
    """Return a note; None where there is none that this service sealed."""
    row = cursor(session).execute(_READ, (name,)).fetchone()
    try:
        return None if row is None else json.loads(master_keys.open(bytes(row[0]), identity(name)))
    except CannotOpen:
        return None


def identity(name: str) -> str:
    """Return what a note of this name is sealed for."""
    return f"sealed_notes/{name}"
