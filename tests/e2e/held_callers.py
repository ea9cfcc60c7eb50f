"""Callers that hold connections open, and large records for them."""

from typing import Any

from tests.e2e.harness.stack import Caller

TOKEN = "t0ken"
JSON = "Content-Type: application/json"
THREADS = 4
SETTINGS = "/v1/tenant/settings"
FOR_EVER = "100000"
STEP: dict[str, Any] = {
    "name": "read the order",
    "kind": "tool",
    "started_at": "2026-01-31T12:00:00Z",
    "ended_at": "2026-01-31T12:00:01Z",
    "status": "ok",
    "attributes": {"note": "x" * 2_000},
}


def large_record(caller: Caller, steps: int = 400) -> str:
    """Post a record whose bundle has more than 800 KB; return its path."""
    body = {"session_id": caller.session(), "kind": "k", "title": "t", "content": None}
    made = caller.post("/v1/records", {**body, "steps": [STEP] * steps})
    return f"/v1/records/{made['id']}"
