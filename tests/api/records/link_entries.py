"""The audit entries of share links."""

from typing import Any

from tests.support.callers.api import Api


def audited(owner: Api) -> list[dict[str, Any]]:
    entries = owner.get("/v1/audit?limit=200").json["data"]
    return [entry for entry in entries if entry["action"].startswith("share_link.")]
