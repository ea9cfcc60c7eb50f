"""Entries and exports of a tenant's audit chain."""

import json
from hashlib import sha256
from typing import Any

import rfc8785
from sqlalchemy import Engine, text

from tests.support.callers.api import Api, FreshTenant

NDJSON = {"Accept": "application/x-ndjson"}
MEMBERS = {
    "seq",
    "at",
    "tenant_id",
    "actor",
    "action",
    "target",
    "details",
    "request_id",
    "outcome",
    "origin",
    "prev_hash",
    "hash",
}


def change_settings(api: Api, times: int) -> None:
    for number in range(times):
        answer = api.patch("/v1/tenant/settings", {"bundle_retention_days": number + 1})
        assert answer.status_code == 200


def entries(api: Api, query: str = "") -> list[dict[str, Any]]:
    return list(api.get(f"/v1/audit?{query}").json["data"])


def numbers(api: Api, query: str = "") -> list[int]:
    return [entry["seq"] for entry in entries(api, query)]


def export(api: Api, query: str = "") -> list[dict[str, Any]]:
    answer = api.get(f"/v1/audit?{query}", headers=NDJSON)
    assert (answer.status_code, answer.content_type) == (200, "application/x-ndjson")
    assert answer.data.endswith(b"\n")
    return [json.loads(line) for line in answer.data.splitlines()]


def check_chain(chain: list[dict[str, Any]]) -> None:
    """Check a chain as a stranger would, with another implementation of RFC 8785."""
    previous = "0" * 64
    for number, entry in enumerate(chain, start=1):
        assert entry.keys() == MEMBERS
        assert (entry["seq"], entry["prev_hash"]) == (number, previous)
        hashed = {name: value for name, value in entry.items() if name != "hash"}
        previous = sha256(rfc8785.dumps(hashed)).hexdigest()
        assert entry["hash"] == previous


def _execute(admin_engine: Engine, tenant: FreshTenant, statement: str, **values: Any) -> None:
    with admin_engine.begin() as connection:
        done = connection.execute(text(statement), {"tenant": tenant.id} | values)
        assert done.rowcount > 0
