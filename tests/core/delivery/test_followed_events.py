"""`record.created` and `session.opened`: of whoever names them, as a GET answers the object."""

from typing import Any

import jsonschema_rs
import pytest
from sqlalchemy import Engine, text

from app.api.resources.events import CATALOGUE
from app.core import agents, sessions
from app.core.agents import NewAgent
from app.core.delivery.event_types import EventType
from app.core.sessions import NewSession
from app.database import Database
from tests.support.callers.api import ApiOf, FreshTenant
from tests.support.callers.making import make_record, make_session
from tests.support.callers.sending import history, make_webhook
from tests.support.database.plans import explained, indexes

BOTH = ["record.created", "session.opened"]
ODD = 'a "quoted"\\ \n\t\u0001 é\U0001f600\u2028'


def payloads(api: Any, webhook: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the events of a webhook, oldest first."""
    rows = reversed(history(api, webhook))
    return [api.get(f"/v1/events/{row['event_id']}").json["payload"] for row in rows]


@pytest.mark.parametrize("words", ["plain", ODD])
def test_the_event_is_what_a_get_answers(api: ApiOf, words: str) -> None:
    webhook = make_webhook(api(), event_types=BOTH)
    session = make_session(
        api(), external_id=words, principal=words, title=words, metadata={words: [1.0, None]}
    )
    labels = {"odd": words, "b": "", "é": "1"}
    record = make_record(
        api(),
        session["id"],
        title=words,
        kind=words,
        labels=labels,
        occurred_at="0999-01-31T12:00:00.5+01:00",
    )
    opened, created = payloads(api(), webhook)
    assert (opened["type"], created["type"]) == ("session.opened", "record.created")
    assert opened["data"] == session == api().get(f"/v1/sessions/{session['id']}").json
    assert created["data"] == record
    for each in (opened, created):
        entry = CATALOGUE[EventType(each["type"])]
        schema = jsonschema_rs.Draft202012Validator(entry.data_schema, validate_formats=True)
        schema.validate(each["data"])
        assert set(each["data"]) == set(entry.data_schema["properties"])


def test_without_a_webhook_that_names_the_type_there_is_no_event(api: ApiOf) -> None:
    unnamed = make_webhook(api())
    make_record(api(), make_session(api())["id"])
    assert api().get("/v1/events").json["data"] == []
    named = make_webhook(api(), event_types=["record.created"])
    record = make_record(api(), make_session(api())["id"])
    (event,) = api().get("/v1/events").json["data"]
    assert event["data"]["id"] == record["id"]
    assert len(history(api(), named)) == 1
    # Absent types are all but these.
    assert history(api(), unnamed) == []
    decisions = api().get(f"/v1/events/{event['id']}").json["webhooks"]
    assert {each["webhook_id"]: each["decision"] for each in decisions} == {
        unnamed["id"]: "filtered",
        named["id"]: "matched",
    }


def test_sessions_opened_many_at_once_and_by_a_put_are_told_once_each(
    api: ApiOf, database: Database, tenant: FreshTenant
) -> None:
    webhook = make_webhook(api(), event_types=["session.opened"])
    for _ in range(2):
        with database.raw_transaction(tenant.id) as tx:
            known = agents.get_or_create(tx, tenant.id, [NewAgent("a", "a")])
            new = [NewSession(f"s{number}", known["a"].id, "p") for number in range(3)]
            sessions.get_or_create(tx, tenant.id, new)
        body = {"agent_external_id": "a", "principal": "p"}
        api().request("PUT", "/v1/sessions/by-external-id/s3", json=body)
    told = [each["data"]["external_id"] for each in payloads(api(), webhook)]
    assert sorted(told) == ["s0", "s1", "s2", "s3"]


def test_what_nobody_asked_for_costs_a_look_into_an_empty_index(
    api: ApiOf, tenant: FreshTenant, admin_engine: Engine
) -> None:
    # So many that the planner sees what the empty index spares.
    for _ in range(40):
        make_webhook(api())
    with admin_engine.connect() as connection:
        connection.execute(text("ANALYZE webhooks"))
        plan = explained(
            connection,
            "SELECT FROM webhooks WHERE tenant_id = %s AND deleted_at IS NULL"
            " AND event_types && ARRAY['record.created', 'session.opened']"
            " AND 'record.created' = ANY (event_types)",
            (tenant.id,),
        )
        assert [*indexes(plan)] == ["webhooks_following"]
