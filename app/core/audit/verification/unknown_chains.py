"""Chains that the log knows and no tenant has: counted, and acknowledged if that is on purpose.

Only the daily run looks for them. An acknowledgement is sealed: who has the database alone could
otherwise rename a chain and acknowledge its old name.
"""

import json
from dataclasses import dataclass
from typing import Any

import structlog
from sqlalchemy.orm import Session

from app.core import jobs
from app.database import cursor
from app.errors import NotFound
from app.lib.sealing import CannotOpen, MasterKeys
from app.models import NO_TENANT

_log = structlog.get_logger(__name__)

REASON = "unknown_chain"

_OPEN = f"""
SELECT count(DISTINCT subject) FROM audit_breaks
 WHERE healed_at IS NULL AND tenant_id = '{NO_TENANT}' AND reason = '{REASON}'
"""
_CLOSE = f"""
UPDATE audit_breaks SET healed_at = clock_timestamp()
 WHERE healed_at IS NULL AND tenant_id = '{NO_TENANT}' AND reason = '{REASON}' AND subject = %s
"""
_KEEP = """
INSERT INTO acknowledged_chains (chain, seal) VALUES (%s, %s)
ON CONFLICT (chain) DO UPDATE SET seal = excluded.seal, at = clock_timestamp()
"""


@dataclass(frozen=True)
class Unknown:
    """How many chains are open, and when the daily run that looked for them began.

    `looked_at` is None while no run has read the log; then `count` is what earlier ones left open.
    """

    count: int
    looked_at: str | None

    def represent(self) -> dict[str, Any]:
        """Return it as it is answered: null where nobody looked and nothing is open."""
        computed = self.looked_at is not None or self.count
        return {
            "unknown_chains": self.count if computed else None,
            "unknown_chains_at": self.looked_at,
        }


def standing(session: Session) -> Unknown:
    """Return what is open, in a session that sees the service's own rows."""
    count = cursor(session).execute(_OPEN.encode()).fetchone()
    run = jobs.last_of(session, kind="verify_audit", dedupe_key="all")
    progress = json.loads(run.progress) if run is not None and run.progress else {}
    looked = progress["began"] if "unknown_chains" in progress else None
    return Unknown(0 if count is None else count[0], looked)


def acknowledged(session: Session, master_keys: MasterKeys) -> frozenset[bytes]:
    """Return the names of chains that an operator acknowledged; those whose seal opens."""
    rows = cursor(session).execute("SELECT chain, seal FROM acknowledged_chains").fetchall()
    return frozenset(bytes(chain) for chain, seal in rows if _holds(master_keys, chain, seal))


def acknowledge(session: Session, master_keys: MasterKeys, chain: bytes) -> None:
    """Close an unknown chain for good. Raises `NotFound` if none of this name is open."""
    if not cursor(session).execute(_CLOSE.encode(), (chain.hex(),)).rowcount:
        raise NotFound("No chain of this name is open: the line audit_chain_without_tenant has it.")
    cursor(session).execute(_KEEP, (chain, master_keys.seal(chain, identity(chain))))
    _log.warning("unknown_chain_acknowledged", chain=chain.hex())


def _holds(master_keys: MasterKeys, chain: bytes, seal: bytes) -> bool:
    try:
        return master_keys.open(bytes(seal), identity(bytes(chain))) == bytes(chain)
    except CannotOpen:
        return False


def identity(chain: bytes) -> str:
    """Name the place of an acknowledgement, for which it is sealed."""
    return f"acknowledged_chains/{chain.hex()}"
