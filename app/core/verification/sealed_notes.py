"""Sealed notes: what the daily run found, which the database's owner cannot write.

An older note can be put back: each names when its run began. An operator acknowledges chains that
the log knows and no tenant has, so the owner cannot rename a chain and acknowledge its old name;
without the note of one the alarm is told again.
"""

import json
from collections.abc import Iterable
from datetime import datetime
from typing import Any

import structlog
from sqlalchemy.orm import Session

from app.clock import rfc3339
from app.database import cursor
from app.errors import NotFound
from app.lib import canonical_json
from app.lib.crypto.sealing import CannotOpen, MasterKeys
from app.models import NO_TENANT

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
    return None if row is None else _opened(master_keys, name, row[0])


def _opened(master_keys: MasterKeys, name: str, sealed: bytes) -> Any:
    try:
        return json.loads(master_keys.open(bytes(sealed), identity(name)))
    except CannotOpen:
        return None


def identity(name: str) -> str:
    """Return what a note of this name is sealed for."""
    return f"sealed_notes/{name}"


_log = structlog.get_logger(__name__)

UNKNOWN_CHAIN = "unknown_chain"
_FOUND = "unknown_chains"
# A note of each chain: two that are acknowledged at once are both kept, and so is one that does not
# open for now.
_ACKNOWLEDGED = "acknowledged_chain/"

_OPEN = f"""
SELECT count(DISTINCT subject) FROM audit_breaks
 WHERE healed_at IS NULL AND tenant_id = '{NO_TENANT}' AND reason = '{UNKNOWN_CHAIN}'
"""
_CLOSE = f"""
UPDATE audit_breaks SET healed_at = clock_timestamp()
 WHERE healed_at IS NULL AND tenant_id = '{NO_TENANT}' AND reason = '{UNKNOWN_CHAIN}'
   AND subject = %s
"""
_ALL = f"SELECT name, sealed FROM sealed_notes WHERE starts_with(name, '{_ACKNOWLEDGED}')"


def keep_found(
    session: Session, master_keys: MasterKeys, chains: Iterable[bytes], began: datetime
) -> None:
    """Seal which chains without a tenant the daily run found that began at this moment."""
    found = {"chains": [chain.hex() for chain in chains], "began": rfc3339(began)}
    write(session, master_keys, _FOUND, found)


def unknown_chains(session: Session, master_keys: MasterKeys) -> dict[str, Any]:
    """Return for the API how many chains without a tenant are open, and as of which daily run.

    Before a run has sealed what it found, it is the number of stored breaks, and null for none.
    Takes a session that sees the service's own rows.
    """
    found = read(session, master_keys, _FOUND)
    if found is None:
        ((count,),) = cursor(session).execute(_OPEN.encode()).fetchall()
        return {"unknown_chains": count or None, "unknown_chains_at": None}
    chains = {bytes.fromhex(chain) for chain in found["chains"]}
    count = len(chains - acknowledged(session, master_keys))
    return {"unknown_chains": count, "unknown_chains_at": found["began"]}


def acknowledged(session: Session, master_keys: MasterKeys) -> frozenset[bytes]:
    """Return the names of chains that an operator acknowledged."""
    rows = cursor(session).execute(_ALL.encode()).fetchall()
    notes = (_opened(master_keys, *row) for row in rows)
    return frozenset(bytes.fromhex(chain) for chain in notes if chain is not None)


def acknowledge(session: Session, master_keys: MasterKeys, chain: bytes) -> None:
    """Close an unknown chain for good. Raises `NotFound` if none of this name is open."""
    if not cursor(session).execute(_CLOSE.encode(), (chain.hex(),)).rowcount:
        raise NotFound("No chain of this name is open: the line audit_chain_without_tenant has it.")
    write(session, master_keys, f"{_ACKNOWLEDGED}{chain.hex()}", chain.hex())
    _log.warning("unknown_chain_acknowledged", chain=chain.hex())
