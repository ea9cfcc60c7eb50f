"""A client of record-service: `Client`, `AsyncClient`, and the command `record-service`.

The library, in the order of work: `errors`, `values` (as JSON), `schemas` and `operations` (made
from OpenAPI), `verbs`, `transport`, `client`, `webhooks`, `journal` and `pushing` (each file once),
`state`, `forwarding`, `verifier`; `recorder` (the way in for agents), `integrations`, `otel`. The
command: `cli`, `output`, `commands`.
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
