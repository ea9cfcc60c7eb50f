"""A client of record-service: `Client`, and the command `record-service`.

The library, in the order of work: `errors`, `transport` (one request, retried), `client`, `journal`
and `pushing` (many files, each once), `state`, `signing` and `forwarding` (events to a local URL),
`verifier`; `values` (any value as JSON), `recorder` (the way in for agents), `integrations`,
`otel`. The command: `cli`, `output`, and `commands`.
"""

from __future__ import annotations

from record_service.client import Client, Json
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
