"""The caller that a request's key or session identifies, and the actor in the audit chain."""

import enum
from dataclasses import asdict, dataclass
from typing import Any
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
class Person:
    """A person whom an OpenID provider signed in: `issuer` and `subject` name them.

    `name` and `email` are labels, as the provider told them.
    """

    issuer: str
    subject: str
    name: str
    email: str | None

    @property
    def id(self) -> UUID:
        """The person's id, the same in every tenant."""
        return ids.of_person(self.issuer, self.subject)


@dataclass(frozen=True)
class Actor:
    """The actor of a privileged action: a key, a person, the system, an operator or a link."""

    type: str
    id: str
    role: str | None = None
    person: Person | None = None

    def members(self) -> dict[str, Any]:
        """Return the members of `actor` in an audit entry."""
        role = {} if self.role is None else {"role": self.role}
        person = {} if self.person is None else {"person": asdict(self.person)}
        return {"type": self.type, "id": self.id, **person, **role}


SYSTEM = Actor("system", "record-service")
OPERATOR = Actor("operator", "manage")
# The holder of a link from a mail.
UNSUBSCRIBER = Actor("link", "digest.unsubscribe")


@dataclass(frozen=True)
class Caller:
    """An authenticated request: tenant, key, role, pin; its id and address are for the audit.

    A `person` of the console has no key: `key_id` is the person's id. Not `confirmed`: the key was
    valid when last looked up. The view's own SQL statement must check that it still is.
    """

    tenant_id: UUID
    key_id: UUID
    role: Role
    pin: Pin | None
    request_id: str
    confirmed: bool = True
    origin: str | None = None
    person: Person | None = None

    def require(self, needed: Role) -> None:
        """Raise `InsufficientRole` unless the key's role is `needed` or above."""
        if not self.role.allows(needed):
            raise InsufficientRole(
                f"This needs a key with the role {needed}; the key used has the role {self.role}."
                if self.person is None
                else f"This needs the role {needed}; your groups give you the role {self.role}."
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
        """Return the key or the person as the audit chain names them."""
        kind = "key" if self.person is None else "person"
        return Actor(kind, ids.of_caller(self.key_id), str(self.role), self.person)
