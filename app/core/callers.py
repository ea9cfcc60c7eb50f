"""The caller that a request's key identifies, and the actor named in the audit chain."""

import enum
from dataclasses import dataclass
from uuid import UUID

from app import ids
from app.errors import InsufficientRole, PinnedKey


class Role(enum.StrEnum):
    """Roles of API keys, weakest first; each includes the permissions of those before it."""

    READ = "read"
    WRITE = "write"
    ADMIN = "admin"

    def allows(self, needed: "Role") -> bool:
        """Say whether this role is `needed` or above it."""
        ranks = list(Role)
        return ranks.index(self) >= ranks.index(needed)


@dataclass(frozen=True)
class Pin:
    """The one agent and principal whose objects a pinned key may access."""

    agent_id: UUID
    principal: str


@dataclass(frozen=True)
class Actor:
    """The actor of a privileged action: a key, the system, an operator's command or a link."""

    type: str
    id: str
    role: str | None = None


SYSTEM = Actor("system", "record-service")
OPERATOR = Actor("operator", "manage")
# The holder of a link from a mail.
UNSUBSCRIBER = Actor("link", "digest.unsubscribe")


@dataclass(frozen=True)
class Caller:
    """An authenticated request: tenant, key, role, pin; its id and address are for the audit.

    Not `confirmed`: the key was valid when last looked up. The view's own SQL statement
    must check that it still is.
    """

    tenant_id: UUID
    key_id: UUID
    role: Role
    pin: Pin | None
    request_id: str
    confirmed: bool = True
    origin: str | None = None

    def require(self, needed: Role) -> None:
        """Raise `InsufficientRole` unless the key's role is `needed` or above."""
        if not self.role.allows(needed):
            raise InsufficientRole(
                f"This needs a key with the role {needed}; the key used has the role {self.role}."
            )

    def require_no_pin(self) -> None:
        """Raise `PinnedKey` if the key is pinned: the resource belongs to the whole tenant."""
        if self.pin is not None:
            raise PinnedKey(
                "This belongs to the whole tenant, and the key used is pinned to one agent and "
                "principal. Use a key without a pin."
            )

    def may_touch(self, agent_id: UUID, principal: str | None = None) -> bool:
        """Say whether the pin, if any, covers this agent (and principal, if given)."""
        if self.pin is None:
            return True
        return self.pin.agent_id == agent_id and principal in (None, self.pin.principal)

    def actor(self) -> Actor:
        """Return the key as the audit chain names it."""
        return Actor("key", ids.text("key", self.key_id), str(self.role))
