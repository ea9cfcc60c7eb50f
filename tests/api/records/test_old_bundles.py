"""Bundles of version 1, as releases before signed them, are read everywhere as they were."""

import json
from hashlib import sha256
from typing import Any

from sqlalchemy import Engine, text

from app.core import signing_keys
from app.core.records import bundles
from app.core.signing_keys import Purpose
from app.database import Database
from app.lib import canonical_json
from tests.support.callers.api import ApiOf, FreshTenant
from tests.support.callers.making import make_agent, make_record, make_session, token_to, uuid_of
from tests.support.secrets import MASTER_KEYS

STEP = {
    "name": "look up",
    "kind": "tool",
    "started_at": "2026-01-31T12:00:00.000000Z",
    "ended_at": "2026-01-31T12:00:01.000000Z",
    "status": "ok",
    "inputs": ["order"],
}


REPLACE = (
    """
    UPDATE records SET bundle_sha256 = :digest, bundle_size = :size, signature = :signature
     WHERE id = :id
    """,
    "UPDATE bundles SET size = :size, bytes = :sealed WHERE record_id = :id",
)


def made_v1(raw: bytes) -> bytes:
    """Return what the release before had written in place of a bundle."""
    read = json.loads(raw)
    record = read["record"]
    record["session_id"] = record.pop("session")["id"]
    record["agent_id"] = record.pop("agent")["id"]
    return canonical_json.dumps({**read, "schema": "records/bundle/v1"})


def test_a_record_of_before_is_exported_and_shown_with_the_name_that_its_agent_had(
    api: ApiOf, database: Database, tenant: FreshTenant, admin_engine: Engine
) -> None:
    agent = make_agent(api(), name="Loans", external_id="loans")
    session = make_session(api(), agent["id"])
    record = make_record(api(), session["id"], content={"amount": 1}, steps=[STEP])
    api().patch(f"/v1/agents/{agent['id']}", {"name": "Innocent"})
    path, record_id = f"/v1/records/{record['id']}", uuid_of(record["id"])
    old = made_v1(api().get(f"{path}/bundle").data)
    with database.transaction(tenant.id) as tx:
        key = signing_keys.current(tx, MASTER_KEYS, Purpose.BUNDLE)
    changed = {
        "id": record_id,
        "digest": sha256(old).digest(),
        "size": len(old),
        "signature": key.sign(old),
        "sealed": bundles.sealed(MASTER_KEYS, tenant.id, record_id, old),
    }
    with admin_engine.begin() as connection:
        for statement in REPLACE:
            connection.execute(text(statement), changed)

    assert api().get(f"{path}/bundle").data == old
    prov = api().get(f"{path}/prov.json").json
    assert prov["agent"][f"agent:{agent['id']}"]["prov:label"] == "Loans"
    (of_traces,) = api().get(f"{path}/otlp-traces.json").json["resourceSpans"]
    root, step = of_traces["scopeSpans"][0]["spans"]
    assert (root["name"], step["parentSpanId"]) == ("invoke_agent Loans", root["spanId"])
    told = {each["key"]: each["value"] for each in root["attributes"]}
    assert told["gen_ai.conversation.id"] == {"stringValue": session["id"]}
    assert told["gen_ai.agent.id"] == {"stringValue": agent["id"]}
    (of_logs,) = api().get(f"{path}/otlp-logs.json").json["resourceLogs"]
    assert "Loans recorded" in of_logs["scopeLogs"][0]["logRecords"][0]["body"]["stringValue"]
    token, _ = token_to(api(), record)
    page: Any = api(None).get(f"/s/{token}").text
    assert "Loans" in page
    assert "look up" in page
    (listed,) = api().get("/v1/records?order=asc&include=content").json["data"]
    assert (listed["content"], listed["steps"][0]["name"]) == ({"amount": 1}, "look up")
