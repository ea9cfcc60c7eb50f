"""A client of record-service: `Recorder`, `Client`, `AsyncClient`, and a command.

The library, in the order of work: `errors`, `values` (as JSON), `schemas` and `operations` (made
from OpenAPI), `verbs`, `transport`, `client`, `webhooks`, `recorder` (the
way in for agents), `integrations`, `otel`, `journal` and `pushing` (many files, each once),
`state`, `forwarding` (events to a local URL), `verifier`. The command: `cli`, `output`, `commands`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from record_service.errors import (
    Conflict,
    Denied,
    HistoryRolledBack,
    Invalid,
    NotFound,
    Problem,
    RecordsError,
    Unavailable,
    Unreachable,
)

if TYPE_CHECKING:
    from record_service.client import AsyncClient, Client, Json
    from record_service.recorder import Recorder

__all__ = [
    "AsyncClient",
    "Client",
    "Conflict",
    "Denied",
    "HistoryRolledBack",
    "Invalid",
    "Json",
    "NotFound",
    "Problem",
    "Recorder",
    "RecordsError",
    "Unavailable",
    "Unreachable",
]

# Loaded when they are asked for: an agent imports the one, a receiver of webhooks neither.
_LATER = {
    "AsyncClient": "record_service.client",
    "Client": "record_service.client",
    "Json": "record_service.client",
    "Recorder": "record_service.recorder",
}


def version() -> str:
    """Return the installed version of this package; `checkout` where it is not installed."""
    from importlib import metadata  # noqa: PLC0415  # slow to load

    try:
        return metadata.version("record-service-client")
    except metadata.PackageNotFoundError:
        return "checkout"


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LATER[name]), name)
