"""Facets: filters of a record, stored beside its words in one index.

Without them, a search for common words by one agent would read all of that agent's records. Label
names contain no colon, so they differ from facets.
"""

from collections.abc import Iterator, Mapping
from uuid import UUID

from app.core.callers import Caller


def of(session_id: UUID, agent_id: UUID, principal: str, kind: str) -> dict[str, str]:
    """Return the facets of a record, as pairs of name and value."""
    return {
        ":session_id": session_id.hex,
        ":agent_id": agent_id.hex,
        ":principal": principal,
        ":kind": kind,
    }


def asked(caller: Caller, filters: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yield the facets that filters and the caller's pin ask for."""
    for name in ("session_id", "agent_id", "principal", "kind"):
        value = filters.get(name)
        if value is not None:
            yield f":{name}", value.hex if isinstance(value, UUID) else str(value)
    if caller.pin is not None:
        yield ":agent_id", caller.pin.agent_id.hex
        yield ":principal", caller.pin.principal
