"""A receiver check: each kind of receiver gets its grades, and nothing of it is a delivery."""

import hmac
import json
import time
from collections.abc import Callable
from typing import Any
from uuid import UUID

import jsonschema_rs
import pytest

from app import ids
from app.core.delivery.event_types import OTHERS, EventType
from app.core.jobs import leases
from app.lib.crypto.webhook_signing import Signer
from jobs.durable import run_job
from jobs.durable.run_job import work_on
from tests.support.callers.api import ApiOf
from tests.support.callers.making import NOBODY, refused
from tests.support.servers.receivers import Receiver, Request, http_answer
from tests.support.workers.worlds import World

Answer = Callable[["Judge", Request], int | None]


class Judge:
    """What a receiver knows of a request: whether its signature holds, its age, and its id."""

    def __init__(self, answer: Answer) -> None:
        self.secret = ""
        self.answer = answer
        self.known: set[str] = set()

    def __call__(self, request: Request) -> bytes | None:
        status = self.answer(self, request)
        return None if status is None else http_answer(status)

    def genuine(self, request: Request) -> bool:
        at = int(request.headers["webhook-timestamp"])
        made = Signer([self.secret]).headers(request.headers["webhook-id"], at, request.body)
        return all(hmac.compare_digest(made[name], request.headers[name]) for name in made)

    def old(self, request: Request) -> bool:
        return time.time() - int(request.headers["webhook-timestamp"]) > 300

    def knows(self, request: Request) -> bool:
        known = request.headers["webhook-id"] in self.known
        self.known.add(request.headers["webhook-id"])
        return known


def careful(judge: Judge, request: Request) -> int:
    return 204 if judge.genuine(request) and not judge.old(request) else 401


def check(world: World, api: ApiOf, webhook: UUID) -> Any:
    """Check a receiver to the end of its job, which is returned."""
    asked = api().post(f"/v1/webhooks/{ids.text('whk', webhook)}/check")
    assert asked.status_code == 202, asked.json
    work_on(world.runtime, world.tenant_id, ids.parse("job", asked.json["id"]) or ids.new())
    return api().get(f"/v1/jobs/{asked.json['id']}").json


@pytest.mark.parametrize(
    ("answer", "grades", "advice"),
    [
        pytest.param(careful, [True, True, True, True], "acts once", id="careful"),
        pytest.param(
            lambda *_: 200, [True, False, False, True], "does not verify", id="takes anything"
        ),
        pytest.param(
            lambda judge, request: 200 if judge.genuine(request) else 400,
            [True, True, False, True],
            "recorded request",
            id="has no clock",
        ),
        pytest.param(
            lambda judge, request: 409 if judge.knows(request) else careful(judge, request),
            [True, True, True, False],
            "webhook-id that is known",
            id="refuses repeats",
        ),
        pytest.param(
            lambda *_: 401, [False, None, None, None], "verify-signature", id="another secret"
        ),
        pytest.param(
            lambda judge, request: 204 if careful(judge, request) == 204 else 500,
            [True, False, False, True],
            "Answer 401",
            id="breaks on a wrong signature",
        ),
        pytest.param(lambda *_: 302, [False, None, None, None], "not followed", id="redirects"),
        pytest.param(lambda *_: 410, [False, None, None, None], "disables", id="is gone"),
        pytest.param(lambda *_: None, [False, None, None, None], "closed", id="hangs up"),
    ],
)
def test_each_receiver_gets_its_grades_with_advice(
    world: World, api: ApiOf, answer: Answer, grades: list[bool | None], advice: str
) -> None:
    judge = Judge(answer)
    with Receiver(judge) as receiver:
        webhook = world.webhook(receiver.url())
        judge.secret = world.secrets[webhook]
        job = check(world, api, webhook)

    progress = job["progress"]
    assert job["status"] == "succeeded"
    assert [each["name"] for each in progress["checks"]] == [
        "valid",
        "tampered",
        "stale",
        "repeated",
    ]
    assert [each["ok"] for each in progress["checks"]] == grades
    assert progress["passed"] is all(grades)
    assert any(advice in each["detail"] for each in progress["checks"])
    assert len(receiver.requests) == (5 if answer(judge, receiver.requests[0]) else 1)


def test_what_is_sent_is_marked_signed_and_no_delivery(world: World, api: ApiOf) -> None:
    judge = Judge(careful)
    with Receiver(judge) as receiver:
        webhook = world.webhook(receiver.url(), event_types=["finding.created"])
        judge.secret = world.secrets[webhook]
        world.change(webhook, held=True)
        before = world.lane(webhook)
        job = check(world, api, webhook)

    sent = [json.loads(request.body) for request in receiver.requests]
    names = ["valid", "tampered", "stale", "repeated", "repeated"]
    assert [event["data"]["check"] for event in sent] == names
    schema = OTHERS[EventType.WEBHOOK_TEST].data_schema
    for event, request in zip(sent, receiver.requests, strict=True):
        jsonschema_rs.Draft202012Validator(dict(schema)).validate(event["data"])
        assert event["id"] == request.headers["webhook-id"]
        assert "x-service-sequence" not in request.headers
    assert sent[3] == sent[4]
    assert len({event["id"] for event in sent}) == 4
    named = [each["event_id"] for each in job["progress"]["checks"]]
    assert named == list(dict.fromkeys(event["id"] for event in sent))

    assert world.deliveries(webhook) == []
    assert world.lane(webhook) == before
    assert world.rows("SELECT id FROM events") == []


def test_a_worker_that_dies_repeats_one_request_and_no_more(world: World, api: ApiOf) -> None:
    judge = Judge(careful)
    with Receiver(judge) as receiver:
        webhook = world.webhook(receiver.url())
        judge.secret = world.secrets[webhook]
        asked = api().post(f"/v1/webhooks/{ids.text('whk', webhook)}/check").json
        job_id = ids.parse("job", asked["id"])
        assert job_id is not None
        work = run_job.KINDS["receiver_check"](world.runtime)
        with world.database.across_tenants() as session:
            job = leases.claim(session, world.tenant_id, job_id)
        assert job is not None
        with world.database.transaction(world.tenant_id) as session:
            errand = work(session, world.tenant_id, job)
        errand.talk()  # type: ignore[union-attr]  # each of its steps is one
        world.run("UPDATE jobs SET locked_until = clock_timestamp()")
        done = check(world, api, webhook)

    assert (done["id"], done["status"], done["progress"]["passed"]) == (
        asked["id"],
        "succeeded",
        True,
    )
    assert len(receiver.requests) == 6
    assert receiver.requests[0].body == receiver.requests[1].body


def test_a_check_waits_for_room_beside_hanging_receivers(world: World, api: ApiOf) -> None:
    with Receiver() as receiver:
        webhook = world.webhook(receiver.url())
        permits = world.fill_bulkhead()
        job = check(world, api, webhook)
        assert (job["status"], job["progress"]["sent"]) == ("running", 0)
        assert receiver.requests == []

        for permit in permits:
            world.runtime.bulkhead.release(permit)
        world.run("UPDATE jobs SET run_at = clock_timestamp()")
        assert check(world, api, webhook)["status"] == "succeeded"


def test_a_check_is_one_at_a_time_and_not_of_a_disabled_webhook(world: World, api: ApiOf) -> None:
    with Receiver() as receiver:
        webhook = world.webhook(receiver.url())
        path = f"/v1/webhooks/{ids.text('whk', webhook)}/check"
        first = api().post(path, headers={"Idempotency-Key": "k"})
        assert api().post(path).json["id"] == first.json["id"]
        world.change(webhook, status="disabled")
        repeated = api().post(path, headers={"Idempotency-Key": "k"})
        assert (repeated.status_code, repeated.json) == (202, first.json)
        refused(api().post(path), 409, "webhook-disabled")
        work_on(world.runtime, world.tenant_id, ids.parse("job", first.json["id"]) or ids.new())

    job = api().get(f"/v1/jobs/{first.json['id']}").json
    assert (job["status"], receiver.requests) == ("dead", [])
    assert "disabled" in job["error"]
    refused(api().post(f"/v1/webhooks/whk_{NOBODY}/check"), 404, "not-found")
