"""Callers that hold connections open, and large records for them."""

from typing import Any

import requests

from tests.e2e.harness.stack import Caller
from tests.support.faults import until

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
    """Post a record whose bundle has more than 800 KB; return its path.

    Bodies of the test before may still be held, and count: until there is room it asks again.
    """
    body = {"session_id": caller.session(), "kind": "k", "title": "t", "content": None}
    answers: list[requests.Response] = []

    def had_room() -> bool:
        answers.append(caller.ask("POST", "/v1/records", json={**body, "steps": [STEP] * steps}))
        return answers[-1].status_code != 503

    until(had_room, pause=0.1)
    assert answers[-1].status_code == 201, answers[-1].text
    return f"/v1/records/{answers[-1].json()['id']}"
