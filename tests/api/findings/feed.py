"""Findings as the feed lists them, and their events."""

import json
from typing import Any

from sqlalchemy import Engine, text

from tests.support.callers.api import Api, FreshTenant

BATCH = "/v1/findings/batch"


def listed(api: Api, query: str = "") -> list[str]:
    return [finding["id"] for finding in api.get(f"/v1/findings?{query}").json["data"]]


def events(admin_engine: Engine, tenant: FreshTenant) -> list[dict[str, Any]]:
    with admin_engine.connect() as connection:
        found = connection.execute(
            text("SELECT payload FROM events WHERE tenant_id = :tenant AND type = :type"),
            {"tenant": tenant.id, "type": "finding.created"},
        )
        return [json.loads(payload) for (payload,) in found]
