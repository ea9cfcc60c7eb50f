"""Facets: filters of a row, stored beside its words in one index.

Without them, a search for common words by one agent would read all rows with these words. Label
names contain no colon, so they differ from facets.
"""

from collections.abc import Iterator, Mapping, Sequence
from uuid import UUID

from app.core.callers import Caller


def of(values: Mapping[str, UUID | str | None]) -> dict[str, str]:
    """Return the facets of a row from its columns, as name and value; a null has none."""
    return {f":{name}": _text(value) for name, value in values.items() if value is not None}


def asked(
    caller: Caller, filters: Mapping[str, object], names: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Yield the facets that the filters (only of `names`) and the caller's pin require."""
    for name in names:
        value = filters.get(name)
        if value is not None:
            yield f":{name}", _text(value)
    if caller.pin is not None:
        yield ":agent_id", caller.pin.agent_id.hex
        yield ":principal", caller.pin.principal


def _text(value: object) -> str:
    return value.hex if isinstance(value, UUID) else str(value)
