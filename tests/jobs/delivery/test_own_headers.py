"""Headers of the receiver's own go out with all that is sent, and their values stay nowhere."""

import json
from collections.abc import Callable

import pytest
from sqlalchemy import Engine, text

from app import ids
from jobs.durable.run_job import work_on
from tests.support.callers.api import ApiOf, Mint
from tests.support.servers.receivers import OK, Receiver, Request, http_answer
from tests.support.workers.worlds import World

TOKEN = "s3cr3t-of-the-receiver"
BEARER = f"Bearer {TOKEN}"
HEADERS = {"Authorization": BEARER, "X-Env": "prod"}
PATH = "/services/T0/B0/p4th-t0k3n?key=qu3ry-t0k3n"


def required(answer: bytes = OK) -> Callable[[Request], bytes]:
    """Answer as a receiver behind an Authorization header does."""
    return lambda request: (
        answer if request.headers.get("authorization") == BEARER else http_answer(401)
    )


def test_every_delivery_replay_and_test_has_them_and_the_signed_ones(
    world: World, api: ApiOf
) -> None:
    with Receiver(required()) as receiver:
        webhook = world.webhook(receiver.url(), headers=HEADERS)
        path = f"/v1/webhooks/{ids.text('whk', webhook)}"
        world.emit(2)
        world.turn(webhook)
        first = api().get(f"{path}/deliveries").json["data"][0]
        assert api().post(f"{path}/test").status_code == 202
        assert api().post(f"{path}/deliveries/{first['id']}/replay").status_code == 202
        world.turn(webhook)

    assert {row["status"] for row in world.deliveries(webhook)} == {"succeeded"}
    assert len(receiver.requests) == 4
    for request in receiver.requests:
        assert request.headers["x-env"] == "prod"
        assert request.headers["content-type"] == "application/json"
        assert request.headers["webhook-signature"].startswith("v1,")


def test_the_check_of_a_receiver_has_them(world: World, api: ApiOf) -> None:
    with Receiver(required()) as receiver:
        webhook = world.webhook(receiver.url(), headers=HEADERS)
        asked = api().post(f"/v1/webhooks/{ids.text('whk', webhook)}/check").json
        work_on(world.runtime, world.tenant_id, ids.read("job", asked["id"]))

    assert len(receiver.requests) == 5
    assert {request.headers["authorization"] for request in receiver.requests} == {BEARER}


def test_others_apply_to_what_waits_and_none_is_sent_any_more(world: World) -> None:
    with Receiver(required()) as receiver:
        webhook = world.webhook(receiver.url(), headers={"Authorization": "Bearer of yesterday"})
        world.emit()
        world.turn(webhook)
        world.change(webhook, headers={"Authorization": BEARER})
        world.turn(webhook)
        assert [row["status"] for row in world.deliveries(webhook)] == ["succeeded"]
        world.change(webhook, headers=None)
        world.emit()
        world.turn(webhook)

    assert "authorization" not in receiver.requests[-1].headers


def everything_stored(engine: Engine) -> bytes:
    """Return every row of the database, in the open."""
    with engine.connect() as connection:
        tables = connection.scalars(
            text(
                "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables"
                " WHERE schemaname = 'public'"
            )
        ).all()
        connection.execute(text("SET app.every_tenant = 'on'"))
        rows = []
        for table in tables:
            for row in connection.execute(text(f"SELECT * FROM {table}")):
                rows += [each if isinstance(each, bytes) else str(each).encode() for each in row]
    return b"\n".join(rows)


def test_no_row_log_line_or_answer_tells_a_value_or_the_url_s_path(
    world: World, api: ApiOf, mint: Mint, admin_engine: Engine, capfd: pytest.CaptureFixture[str]
) -> None:
    def echo(request: Request) -> bytes:
        told = f"Cannot POST {PATH}: {request.headers['authorization']}, and {TOKEN}"
        return http_answer(
            404, told.encode(), {"X-Seen": BEARER, "Location": f"https://x.test{PATH}"}
        )

    with Receiver(echo) as receiver:
        made = api().post("/v1/webhooks", {"url": receiver.url(PATH), "headers": HEADERS}).json
        webhook = ids.read("whk", made["id"])
        world.emit()
        world.turn(webhook)
        api().patch(f"/v1/webhooks/{made['id']}", {"headers": {**HEADERS, "X-Other": TOKEN}})
        refused = api().patch(
            f"/v1/webhooks/{made['id']}", {"headers": {"Authorization": f"{BEARER}\r\nX: y"}}
        )
    (attempt,) = world.attempts()

    assert refused.status_code == 422
    told = bytes(attempt["response_body"]).decode()
    assert told == "Cannot POST ***: ***, and ***"
    assert ["X-Seen", "***"] in json.loads(attempt["response_headers"])
    reader = api(mint("read"))
    shown = reader.get(f"/v1/webhooks/{made['id']}").json
    assert shown["headers"] == {"Authorization": "***", "X-Env": "***", "X-Other": "***"}
    stored = everything_stored(admin_engine)
    written = capfd.readouterr()
    for secret in (TOKEN, "p4th-t0k3n", "qu3ry-t0k3n"):
        assert secret.encode() not in stored
        for answer in (refused.text, api().get("/v1/audit").text, reader.get("/v1/webhooks").text):
            assert secret not in answer
        assert secret not in written.out + written.err
    # What is no secret stays, to be read.
    assert b"Cannot POST" in stored
    entries = api().get("/v1/audit").json["data"]
    update, create = (each["details"] for each in entries if "webhook" in each["action"])
    assert create["headers"] == ["Authorization", "X-Env"]
    assert update["changed"]["headers"] == {
        "old": ["Authorization", "X-Env"],
        "new": ["Authorization", "X-Env", "X-Other"],
    }
