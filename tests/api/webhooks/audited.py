"""Audit entries of webhooks."""

from typing import Any

from tests.support.callers.api import Api

SHOWN = {
    "id",
    "url",
    "headers",
    "event_types",
    "description",
    "max_in_flight",
    "lanes",
    "status",
    "disabled_reason",
    "held",
    "held_since",
    "health",
    "created_at",
    "updated_at",
}

# The health of a webhook to which nothing was sent since it was made or pointed elsewhere.
CLEAN = {
    "state": "ok",
    "consecutive_failures": 0,
    "paused_until": None,
    "failing_since": None,
    "refusing_since": None,
    "refused_status": None,
    "last_success_at": None,
    "slow": False,
    "concurrency": {"now": 0, "allowed": 1},
}


def actions(api: Api) -> list[tuple[str, dict[str, Any]]]:
    """Return the audited actions on webhooks, newest first, each with its details."""
    entries = api.get("/v1/audit").json["data"]
    return [
        (entry["action"], entry["details"])
        for entry in entries
        if entry["action"].startswith("webhook.")
    ]
