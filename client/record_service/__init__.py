"""A client of record-service: `Recorder`, `Client`, `AsyncClient`, and a command.

The library, in the order of work: `errors`, `values` (as JSON), `schemas` and `operations` (made
from OpenAPI), `verbs`, `transport` (one request, retried), `client`, `webhooks`, `recorder` (the
way in for agents), `integrations`, `otel`, `journal` and `pushing` (many files, each once),
`state`, `forwarding` (events to a local URL), `verifier`. The command: `cli`, `output`, `commands`.
"""

from __future__ import annotations

from record_service.client import AsyncClient, Client, Json
from record_service.errors import (
    Conflict,
    Denied,
    Invalid,
    NotFound,
    Problem,
    RecordsError,
    Unavailable,
    Unreachable,
)
from record_service.recorder import Recorder

__all__ = [
    "AsyncClient",
    "Client",
    "Conflict",
    "Denied",
    "Invalid",
    "Json",
    "NotFound",
    "Problem",
    "Recorder",
    "RecordsError",
    "Unavailable",
    "Unreachable",
]
