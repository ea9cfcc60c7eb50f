"""A client of record-service: `Client`, `AsyncClient`, and the command `record-service`.

The library, in the order of work: `errors`, `values` (as JSON), `schemas` and `operations` (made
from OpenAPI), `verbs`, `transport` (one request, retried), `client`, `webhooks`, `journal` and
`pushing` (many files, each once), `state`, `forwarding` (events to a local URL), `verifier`. The
command: `cli`, `output`, and `commands`.
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

__all__ = [
    "AsyncClient",
    "Client",
    "Conflict",
    "Denied",
    "Invalid",
    "Json",
    "NotFound",
    "Problem",
    "RecordsError",
    "Unavailable",
    "Unreachable",
]
