"""The verbs of each resource, `client.findings.create(…)`, out of the table of operations.

A verb is the same for both clients: one returns what it did, the other what is to be awaited.
`verbs.pyi` has the types.
"""

from __future__ import annotations

from typing import Any, Callable

from record_service.operations import OPERATIONS, Operation


class Resource:
    """The verbs of one resource, for one client."""

    def __init__(self, perform: Callable[..., Any]) -> None:
        self._perform = perform


def _verb(name: str, operation: Operation) -> Callable[..., Any]:
    def verb(self: Resource, *ids: str, **given: Any) -> Any:
        return self._perform(operation, ids, **given)

    verb.__name__ = verb.__qualname__ = name
    verb.__doc__ = f"{operation.summary}\n\n{operation.method} {operation.path}"
    return verb


_RESOURCES = {
    name: type(name, (Resource,), {verb: _verb(verb, each) for verb, each in verbs.items()})
    for name, verbs in OPERATIONS.items()
}


class Verbs:
    """What both clients are: a caller with every resource."""

    def _add_verbs(self, perform: Callable[..., Any]) -> None:
        for name, kind in _RESOURCES.items():
            setattr(self, name, kind(perform))


AsyncVerbs = Verbs
