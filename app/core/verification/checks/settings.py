"""Compares a tenant's row with what its chain says about anchoring.

The database's owner could disable anchoring in `tenants` to hide later changes. The last
`settings.update` in the chain decides, and the row must say the same.
"""

from uuid import UUID

from sqlalchemy.orm import Session

from app.core.anchoring import anchors
from app.core.audit import view


def check(session: Session, tenant_id: UUID) -> None:
    """Hold the settings against a chain that was found good.

    Raises `AuditChainBroken` at the entry that says otherwise.
    """
    now = anchors.standing(session, tenant_id)
    if now.enabled != now.enabled_in_chain:
        expected = f"anchoring_enabled {_json(now.enabled_in_chain)}, as the chain says"
        found = f"{_json(now.enabled)} in tenants"
        raise view.broken(now.changed_by, "other_setting", expected, found)


def _json(value: bool) -> str:
    return "true" if value else "false"
