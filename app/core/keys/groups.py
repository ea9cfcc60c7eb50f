"""Which groups of the OpenID provider have a role in which tenant: the operator says so.

The provider is the operator's, and so are its groups; a tenant cannot name another's people.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy.orm import Session

from app import ids
from app.core.audit import chain
from app.core.callers import Person, Role
from app.database import Tx, cursor
from app.errors import AuditChainBroken, NotFound

_OF_TENANT = "SELECT name, role FROM tenant_groups WHERE tenant_id = %s ORDER BY name"
_LOCK = "SELECT FROM tenants WHERE id = %s FOR NO KEY UPDATE"
_SET = """
INSERT INTO tenant_groups AS g (tenant_id, name, role) VALUES (%s, %s, %s)
ON CONFLICT (tenant_id, name) DO UPDATE SET role = excluded.role WHERE g.role <> excluded.role
"""
_DROP = "DELETE FROM tenant_groups WHERE tenant_id = %s AND name = %s"
_TENANTS = """
SELECT t.id, t.name, array_agg(g.name ORDER BY g.name),
       (array_agg(g.role ORDER BY array_position(ARRAY['admin', 'write', 'read'], g.role)))[1]
  FROM tenant_groups AS g JOIN tenants AS t ON t.id = g.tenant_id
 WHERE g.name = ANY(%s) AND t.suspended_at IS NULL
 GROUP BY t.id, t.name ORDER BY t.name, t.id LIMIT %s
"""
_PERSON = "SELECT issuer, subject, name, email FROM people WHERE tenant_id = %s AND id = %s"
MOST_TENANTS = 200
"""A person who has more chooses among these."""


@dataclass(frozen=True)
class Membership:
    """A tenant that a person may enter: by which of their groups, and with which role."""

    tenant_id: UUID
    tenant: str
    groups: Sequence[str]
    role: Role


def of_tenant(tx: Tx, tenant_id: UUID) -> dict[str, Role]:
    """Return the roles of a tenant's groups, by name."""
    rows = cursor(tx).execute(_OF_TENANT, (tenant_id,)).fetchall()
    return {name: Role(role) for name, role in rows}


def change(
    session: Session, tenant_id: UUID, wanted: Mapping[str, Role | None]
) -> AuditChainBroken | None:
    """Set the roles of some groups in a tenant; None: the group has none any more.

    Sessions follow with their next request. Audited as the operator's act; returns the error of a
    broken chain, which has no entry of it. Raises `NotFound`.
    """
    cur, changed = cursor(session), {}
    if cur.execute(_LOCK, (tenant_id,)).fetchone() is None:
        raise NotFound(f"There is no tenant {ids.text('ten', tenant_id)}.")
    for name, role in wanted.items():
        if role is None:
            done = cur.execute(_DROP, (tenant_id, name)).rowcount
        else:
            done = cur.execute(_SET, (tenant_id, name, role)).rowcount
        if done:
            changed[name] = role and str(role)
    if not changed:
        return None
    target = ("tenant", ids.text("ten", tenant_id))
    details = {"groups": changed}
    return chain.append_if_whole(
        session, tenant_id, "tenant.groups", target=target, details=details
    )


def memberships(tx: Tx, groups: Collection[str]) -> list[Membership]:
    """Return the tenants that these groups open, by name, in a session that sees all tenants."""
    rows = cursor(tx).execute(_TENANTS, (list(groups), MOST_TENANTS)).fetchall()
    return [Membership(of, name, by, Role(role)) for of, name, by, role in rows]


def person(tx: Tx, tenant_id: UUID, person_id: UUID | None) -> Person:
    """Return a person who signed in to a tenant. Raises `NotFound`."""
    row = cursor(tx).execute(_PERSON, (tenant_id, person_id)).fetchone()
    if row is None:
        raise NotFound("No such person has signed in.")
    return Person(*row)
