"""The anchors of a tenant's chain, as they are answered: each with the best that proves it."""

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.clock import rfc3339
from app.core import chain_salts
from app.core.anchoring.evidence import Chooser
from app.core.log import proofs, publication
from app.database import cursor
from app.errors import LogDamaged, LogPending, NotFound
from app.ledger.policy import Policy
from app.lib.sealing import MasterKeys
from app.models import AuditAnchor, Tenant


def rows(
    session: Session, tenant_id: UUID, before: int | None, limit: int
) -> Sequence[AuditAnchor]:
    """Return the tenant's anchors, newest first, those of a `seq` below `before`."""
    wanted = select(AuditAnchor).where(AuditAnchor.tenant_id == tenant_id)
    if before is not None:
        wanted = wanted.where(AuditAnchor.seq < before)
    return session.scalars(wanted.order_by(AuditAnchor.seq.desc()).limit(limit)).all()


def count(session: Session, tenant_id: UUID, through: int) -> int:
    """Return how many anchors the tenant has of entries up to `through`."""
    found = select(func.count()).where(
        AuditAnchor.tenant_id == tenant_id, AuditAnchor.seq <= through
    )
    return session.execute(found).scalar_one()


class AnchorReader:
    """Represents the anchors of one tenant; good for one transaction, newest anchors first."""

    def __init__(
        self, session: Session, tenant_id: UUID, policy: Policy | None, master_keys: MasterKeys
    ) -> None:
        """`policy` says which witnesses count; None: none does.

        Raises `AuditChainBroken` where the chain's salt is not the one that was sealed.
        """
        self._session = session
        self._chain = chain_salts.chain_name(session, master_keys, tenant_id).hex()
        self._last = publication.current(session)
        self._chooser = None if self._last is None else Chooser(session, self._last, policy)

    def represent(self, anchor: AuditAnchor) -> dict[str, Any]:
        """Return an anchor as it is answered (docs/formats.md), pending ones without a proof.

        Raises `LogDamaged` for an anchor of which the log never had a leaf.
        """
        return {
            "seq": anchor.seq,
            "hash": anchor.hash.hex(),
            "at": rfc3339(anchor.at),
            "chain": self._chain,
            **self._proof(anchor.leaf_hash),
        }

    def _proof(self, leaf_hash: bytes) -> dict[str, Any]:
        try:
            if self._last is None or self._chooser is None:
                raise LogPending("The log has published nothing yet.")
            found = self._chooser.best(proofs.index_of(self._session, self._last, leaf_hash))
        except LogPending:
            return dict.fromkeys(("log_proof", "vkey", "timestamp", "tsa_chain")) | {
                "cosignatures": []
            }
        except NotFound:
            raise LogDamaged("An anchor's leaf is missing in the log.") from None
        stamp = found.timestamp
        generation = found.published.generation
        return {
            "log_proof": proofs.at_checkpoint(self._session, found.published, leaf_hash),
            "vkey": str(publication.verifier_key(self._session, generation)),
            "timestamp": None if stamp is None else b64encode(stamp.response).decode(),
            "tsa_chain": None if stamp is None else stamp.tsa_chain,
            "cosignatures": list(found.cosignatures),
        }


# Canonical JSON: the names in their order, and every quotation mark inside a string escaped.
_DISABLED = """
SELECT at FROM audit_entries
 WHERE tenant_id = %s AND action = 'settings.update'
   AND position('"anchoring_enabled":{"new":false,"old":true}'::bytea IN body) > 0
 ORDER BY seq DESC LIMIT 1
"""


@dataclass(frozen=True)
class Standing:
    """Whether a tenant's chain is anchored; if not, since when, where its chain says so."""

    enabled: bool
    disabled_since: datetime | None


def standing(session: Session, tenant_id: UUID) -> Standing:
    """Return whether the chain is anchored.

    Switched off by no caller but in the database, there is no entry that says since when.
    """
    enabled = session.execute(
        select(Tenant.anchoring_enabled).where(Tenant.id == tenant_id)
    ).scalar_one()
    if enabled:
        return Standing(enabled=True, disabled_since=None)
    row = cursor(session).execute(_DISABLED, (tenant_id,)).fetchone()
    return Standing(enabled=False, disabled_since=None if row is None else row[0])
