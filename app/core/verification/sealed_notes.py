"""Sealed notes: what the daily run found, which the database's owner cannot write.

An older note can be put back: each names when its run began. Chains that the log knows and no
tenant has are counted, and acknowledged by an operator, so the owner cannot rename a chain and
acknowledge its old name.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
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
    try:
        return None if row is None else json.loads(master_keys.open(bytes(row[0]), identity(name)))
    except CannotOpen:
        return None


def identity(name: str) -> str:
    """Return what a note of this name is sealed for."""
    return f"sealed_notes/{name}"


_log = structlog.get_logger(__name__)

UNKNOWN_CHAIN = "unknown_chain"
UNKNOWN_CHAINS = "unknown_chains"

_OPEN = f"""
SELECT count(DISTINCT subject) FROM audit_breaks
 WHERE healed_at IS NULL AND tenant_id = '{NO_TENANT}' AND reason = '{UNKNOWN_CHAIN}'
"""
_CLOSE = f"""
UPDATE audit_breaks SET healed_at = clock_timestamp()
 WHERE healed_at IS NULL AND tenant_id = '{NO_TENANT}' AND reason = '{UNKNOWN_CHAIN}'
   AND subject = %s
"""
_KEEP = """
INSERT INTO acknowledged_chains (chain, seal) VALUES (%s, %s)
ON CONFLICT (chain) DO UPDATE SET seal = excluded.seal, at = clock_timestamp()
"""


@dataclass(frozen=True)
class Unknown:
    """How many chains are open, and when the daily run that found them began.

    `began_at` is None while no run has read the log and sealed what it found; then `count` is of
    the stored breaks.
    """

    count: int
    began_at: str | None

    def represent(self) -> dict[str, Any]:
        """Return it for the API: null if no run has finished and nothing is open."""
        computed = self.began_at is not None or self.count
        return {
            "unknown_chains": self.count if computed else None,
            "unknown_chains_at": self.began_at,
        }


def keep_found(
    session: Session, master_keys: MasterKeys, chains: Iterable[bytes], began: datetime
) -> None:
    """Seal which chains the daily run found that began at this moment."""
    found = {"chains": [chain.hex() for chain in chains], "began": rfc3339(began)}
    write(session, master_keys, UNKNOWN_CHAINS, found)


def still_open(session: Session, master_keys: MasterKeys) -> Unknown:
    """Return what is open, in a session that sees the service's own rows."""
    found = read(session, master_keys, UNKNOWN_CHAINS)
    if found is None:
        count = cursor(session).execute(_OPEN.encode()).fetchone()
        return Unknown(0 if count is None else count[0], None)
    chains = {bytes.fromhex(chain) for chain in found["chains"]}
    if chains:
        chains -= acknowledged(session, master_keys)
    return Unknown(len(chains), found["began"])


def acknowledged(session: Session, master_keys: MasterKeys) -> frozenset[bytes]:
    """Return the names of chains that an operator acknowledged; those whose seal opens."""
    rows = cursor(session).execute("SELECT chain, seal FROM acknowledged_chains").fetchall()
    return frozenset(bytes(chain) for chain, seal in rows if _holds(master_keys, chain, seal))


def acknowledge(session: Session, master_keys: MasterKeys, chain: bytes) -> None:
    """Close an unknown chain for good. Raises `NotFound` if none of this name is open."""
    if not cursor(session).execute(_CLOSE.encode(), (chain.hex(),)).rowcount:
        raise NotFound("No chain of this name is open: the line audit_chain_without_tenant has it.")
    cursor(session).execute(
        _KEEP, (chain, master_keys.seal(chain, acknowledgement_identity(chain)))
    )
    _log.warning("unknown_chain_acknowledged", chain=chain.hex())


def _holds(master_keys: MasterKeys, chain: bytes, seal: bytes) -> bool:
    try:
        return master_keys.open(bytes(seal), acknowledgement_identity(bytes(chain))) == bytes(chain)
    except CannotOpen:
        return False


def acknowledgement_identity(chain: bytes) -> str:
    """Name the place of an acknowledgement, for which it is sealed."""
    return f"acknowledged_chains/{chain.hex()}"
