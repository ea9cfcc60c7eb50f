"""A POST that is sent twice happens once: after crashes, in races, and with forged repeats."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, text

from app.core import idempotency
from app.core.keys import keyring
from app.database import Database
from app.settings import Settings
from tests.support.callers.api import Api, ApiOf, FreshTenant, Mint
from tests.support.callers.making import pointers
from tests.support.callers.matrix import ROWS, Row, World, send
from tests.support.callers.sending import make_webhook
from tests.support.faults import at_once

NAMED = {"name": "the agent"}
LISTS = (
    *("/v1/agents", "/v1/sessions", "/v1/records", "/v1/findings"),
    *("/v1/webhooks", "/v1/deliveries", "/v1/jobs", "/v1/keys"),
)
# Every route of the service stands in the matrix (test_matrix.py).
POSTS = [row for row in ROWS if row.method == "POST"]
# The one changes nothing, and a span is stored once however often it is sent.
CHANGES_NOTHING = ("/verify-signature", "/v1/traces")
CHANGING = [row for row in POSTS if not row.rule.endswith(CHANGES_NOTHING)]


WAITING = """
WITH gone AS (DELETE FROM ended_deliveries WHERE tenant_id = :tenant RETURNING *)
INSERT INTO open_deliveries (tenant_id, id, webhook_id, event_id, event_type, kind, priority,
                             sequence, feed_sequence, status, attempts, next_attempt_at)
SELECT tenant_id, id, webhook_id, event_id, event_type, kind, priority, sequence, sequence,
       'retrying', 1, clock_timestamp() + interval '1 hour' FROM gone
"""
ENDED = """
UPDATE jobs SET status = '{}', finished_at = clock_timestamp() WHERE tenant_id = :tenant
"""


def repeating(key: str) -> dict[str, Any]:
    return {"headers": {"Idempotency-Key": key}}


def agents(api: ApiOf) -> int:
    return len(api().get("/v1/agents").json["data"])


def listed(api: Api, world: World) -> dict[str, list[str]]:
    """Return the ids of everything that a POST can make, and the actions of the audit chain."""
    paths = (*LISTS, world.share_links)
    ids = {path: [each["id"] for each in api.get(path).json["data"]] for path in paths}
    return ids | {"audit": [each["action"] for each in api.get("/v1/audit").json["data"]]}


@pytest.fixture
def admin(admin_engine: Engine, tenant: FreshTenant) -> Iterator[Callable[[str], Any]]:
    """Run one statement about this tenant as the database's owner."""
    with admin_engine.begin() as connection:
        yield lambda statement: connection.execute(text(statement), {"tenant": tenant.id})


@pytest.mark.parametrize("row", CHANGING, ids=str)
def test_every_post_that_changes_something_answers_a_repeat_as_the_first(
    api: ApiOf, row: Row, admin: Callable[[str], Any]
) -> None:
    world = World(api())
    # What the matrix answers with 409 needs a thing in another state.
    if row.rule.endswith("/deliveries/<delivery_id>/retry-now"):
        admin(WAITING)
    elif row.rule.endswith(("/retry", "/resume")):
        admin(ENDED.format("dead" if row.rule.endswith("/retry") else "cancelled"))
    admin("COMMIT")

    first = send(api(), row, world, {"Idempotency-Key": "k"})
    made = listed(api(), world)
    again = send(api(), row, world, {"Idempotency-Key": "k"})

    assert first.status_code in (200, 201, 202)
    assert "Idempotent-Replayed" not in first.headers
    assert (again.status_code, again.data) == (first.status_code, first.data)
    assert again.headers["Idempotent-Replayed"] == "true"
    assert listed(api(), world) == made


def test_the_documents_name_the_key_where_a_post_reads_it(api: ApiOf) -> None:
    world, document = World(api()), api().get("/openapi.json").json
    for row in POSTS:
        answer = send(api(), row, world, {"Idempotency-Key": "k" * 256})
        described = document["paths"][row.rule.replace("<", "{").replace(">", "}")]["post"]
        named = [each.get("name") for each in described.get("parameters", ())]
        reads = row in CHANGING
        assert ("Idempotency-Key" in named) == reads, row
        assert (answer.status_code == 422) == reads, row
        if reads:
            assert answer.json["errors"][0]["pointer"] == "/Idempotency-Key", row


def test_the_kept_answer_is_sealed(api: ApiOf, admin_engine: Engine, tenant: FreshTenant) -> None:
    minted = api().post("/v1/keys", {"name": "visible", "role": "read"}, **repeating("k")).json

    with admin_engine.connect() as connection:
        kept = connection.scalar(
            text("SELECT sealed_answer FROM idempotency_keys WHERE tenant_id = :tenant"),
            {"tenant": tenant.id},
        )
    assert kept is not None
    assert minted["key"].encode() not in bytes(kept)
    assert b"visible" not in bytes(kept)


def test_another_body_under_the_same_key_is_refused(api: ApiOf) -> None:
    api().post("/v1/agents", NAMED, **repeating("k"))

    for raw in (
        b'{"name":"other"}',
        b'{"name": "the  agent"}',
        b'{"name":"the agent","metadata":{}}',
    ):
        refused = api().post(
            "/v1/agents",
            data=raw,
            headers={"Idempotency-Key": "k", "Content-Type": "application/json"},
        )
        assert refused.status_code == 422
        assert refused.json["type"].endswith("/idempotency-key-reused")
    assert agents(api) == 1


@pytest.mark.parametrize(
    "raw",
    [
        b' { "metadata" : {"a":0.1,"b":[1]},\r\n"name":"the agent" } ',
        b'{"name":"the \\u0061gent","metadata":{"b":[1.0],"a":1e-1}}',
    ],
)
def test_the_same_json_written_in_another_way_is_the_same_body(api: ApiOf, raw: bytes) -> None:
    named = {"name": "the agent", "metadata": {"a": 0.1, "b": [1]}}
    first = api().post("/v1/agents", named, **repeating("k"))
    headers = {"Idempotency-Key": "k", "Content-Type": "application/json"}

    again = api().post("/v1/agents", data=raw, headers=headers)

    assert (again.status_code, again.data) == (201, first.data)
    assert again.headers["Idempotent-Replayed"] == "true"
    assert agents(api) == 1
    path = f"/v1/webhooks/{make_webhook(api())['id']}/rotate-secret"
    none, empty = (api().post(path, sent, **repeating("k")) for sent in (None, dict[str, Any]()))
    assert (none.status_code, empty.data) == (200, none.data)


def test_a_key_counts_for_one_api_key_and_path(api: ApiOf, mint: Mint) -> None:
    other = api(mint("admin"))

    made = [
        api().post("/v1/agents", NAMED, **repeating("k")),
        other.post("/v1/agents", NAMED, **repeating("k")),
        api().post("/v1/keys", {"name": "n", "role": "read"}, **repeating("k")),
    ]

    assert [answer.status_code for answer in made] == [201, 201, 201]
    assert agents(api) == 2


def test_a_key_that_lost_its_role_gets_no_kept_answer(
    api: ApiOf, mint: Mint, admin: Callable[[str], Any]
) -> None:
    minter = api(mint("admin"))
    body = {"name": "n", "role": "read"}
    assert minter.post("/v1/keys", body, **repeating("k")).status_code == 201

    admin("UPDATE api_keys SET role = 'read' WHERE tenant_id = :tenant AND name = 'a admin key'")
    admin("COMMIT")

    assert minter.post("/v1/keys", body, **repeating("k")).status_code == 403


def test_after_24_hours_the_key_is_free_again(api: ApiOf, admin: Callable[[str], Any]) -> None:
    first = api().post("/v1/agents", NAMED, **repeating("k")).json
    admin(
        "UPDATE idempotency_keys SET created_at = clock_timestamp() - interval '24 hours 1 second'"
        " WHERE tenant_id = :tenant"
    )
    admin("COMMIT")

    again = api().post("/v1/agents", {"name": "another"}, **repeating("k"))
    repeat = api().post("/v1/agents", {"name": "another"}, **repeating("k"))

    assert again.status_code == 201
    assert again.json["id"] != first["id"]
    assert repeat.headers["Idempotent-Replayed"] == "true"


def test_a_key_is_printable_ascii_of_up_to_255_characters(api: ApiOf) -> None:
    for key in ("", "k" * 256, "é", "a\tb", "\x7f"):
        assert pointers(api().post("/v1/agents", NAMED, **repeating(key))) == ["/Idempotency-Key"]
    assert agents(api) == 0
    for key in ("k" * 255, " ", "~", "a b", '"quoted"', "k"):
        # What is refused is not kept.
        assert pointers(api().post("/v1/agents", {"name": ""}, **repeating(key))) == ["/name"]
        assert api().post("/v1/agents", NAMED, **repeating(key)).status_code == 201


def test_of_many_at_once_one_makes_it_and_the_others_repeat_or_wait(
    api: ApiOf, tenant: FreshTenant
) -> None:
    answers = at_once(8, lambda _: api().post("/v1/agents", NAMED, **repeating("k")).status_code)

    assert {201} <= set(answers) <= {201, 409}
    assert agents(api) == 1
    assert api().post("/v1/agents", NAMED, **repeating("k")).status_code == 201


def test_while_the_first_is_running_the_second_is_409(
    api: ApiOf, database: Database, settings: Settings, tenant: FreshTenant
) -> None:
    caller = keyring.authenticate(database, tenant.root_key, "r")
    body = b'{"name":"the agent"}'
    running = idempotency.Request.of(caller, "k", "POST", "/v1/agents", body)
    sent = {"headers": {"Idempotency-Key": "k", "Content-Type": "application/json"}, "data": body}

    with database.transaction(tenant.id) as session:
        assert running.find(session, settings.master_keys) is None
        refused = api().post("/v1/agents", **sent)

    assert refused.status_code == 409
    assert refused.json["type"].endswith("/idempotency-key-in-use")
    # The first one was given up without an answer: the second may now make it.
    assert api().post("/v1/agents", **sent).status_code == 201
