"""The main job on a whole stack: a finding becomes a signed delivery, whatever happens."""

import json
import threading
import time
from collections import Counter

import pytest
from standardwebhooks.webhooks import Webhook as StandardWebhook
from standardwebhooks.webhooks import WebhookVerificationError
from svix.webhooks import Webhook as SvixWebhook

from tests.e2e.harness.stack import Caller, RunningStack
from tests.support.faults import until
from tests.support.servers.receivers import OK, Receiver, Request, http_answer

pytestmark = pytest.mark.stacks

# Leases last 30 s; a row whose worker was killed waits for the end of its own.
FAULT_SECONDS = 180.0


def event_id(request: Request) -> str:
    return request.headers["webhook-id"]


def sequences(requests: list[Request]) -> list[int]:
    return sorted({int(each.headers["x-service-sequence"]) for each in requests})


class Moody:
    """An answer that can be changed while the receiver runs."""

    def __init__(self, status: int) -> None:
        self.status = status

    def __call__(self, request: Request) -> bytes:
        return http_answer(self.status)


def test_a_finding_becomes_a_signed_delivery(caller: Caller) -> None:
    with Receiver() as receiver:
        hook = caller.webhook(receiver)
        finding = caller.findings(caller.session(), 1)[0]
        until(lambda: receiver.requests)
        arrived = receiver.requests[0]
        assert (
            json.loads(arrived.body)["data"]
            == finding
            == caller.get(f"/v1/findings/{finding['id']}")
        )
        for library in (StandardWebhook, SvixWebhook):
            library(hook.secret).verify(arrived.body, dict(arrived.headers))
        assert arrived.headers["x-service-sequence"] == "1"
        assert arrived.headers["x-service-attempt"] == "1"
        assert hook.settled()["succeeded"] == 1
        (delivery,) = hook.deliveries()
        assert delivery["event_id"] == event_id(arrived)
        assert delivery["last_attempt"]["status"] == 200


def test_the_end_of_a_session_is_told_and_other_types_are_filtered(caller: Caller) -> None:
    with Receiver() as receiver:
        hook = caller.webhook(receiver, event_types=["session.completed"])
        session = caller.session()
        caller.findings(session, 3)
        caller.post(f"/v1/sessions/{session}/complete", {"outcome": "succeeded"}, 200)
        until(lambda: receiver.requests)
        assert hook.settled()["accepted"] == 1
        (arrived,) = receiver.requests
        body = json.loads(arrived.body)
        assert (body["type"], body["data"]["id"]) == ("session.completed", session)
        assert arrived.headers["x-service-sequence"] == "1"


def test_a_retry_has_the_same_id_and_bytes_and_a_signature_of_its_own(caller: Caller) -> None:
    mood = Moody(500)
    with Receiver(mood) as receiver:
        hook = caller.webhook(receiver)
        caller.findings(caller.session(), 1)
        until(lambda: receiver.requests)
        mood.status = 200
        assert hook.settled()["succeeded"] == 1
        first, second = receiver.requests
        assert (event_id(first), first.body) == (event_id(second), second.body)
        assert [each.headers["x-service-attempt"] for each in (first, second)] == ["1", "2"]
        assert first.headers["webhook-signature"] != second.headers["webhook-signature"]
        for each in (first, second):
            StandardWebhook(hook.secret).verify(each.body, dict(each.headers))
        attempts = hook.delivery(hook.deliveries()[0]["id"])["attempts"]
        assert [each["status"] for each in attempts] == [500, 200]


def test_what_failed_for_good_arrives_by_a_replay(caller: Caller) -> None:
    mood = Moody(400)
    with Receiver(mood) as receiver:
        hook = caller.webhook(receiver)
        caller.findings(caller.session(), 1)
        assert hook.settled()["failed"] == 1
        (failed,) = hook.deliveries(status="failed")
        assert failed["attempt_count"] == 3
        mood.status = 204
        path = f"{hook.path}/deliveries/{failed['id']}/replay"
        replay = caller.post(path, status=202)
        books = hook.settled()
        assert books["balanced"]
        assert (books["failed"], books["replays"]["succeeded"]) == (1, 1)
        assert hook.delivery(replay["id"])["replay_of"] == failed["id"]
        *before, last = receiver.requests
        assert {(event_id(each), each.body) for each in before} == {(event_id(last), last.body)}
        assert sequences([*before, last]) == [1]
        StandardWebhook(hook.secret).verify(last.body, dict(last.headers))


def test_a_test_fire_is_sent_whatever_the_event_types(caller: Caller) -> None:
    with Receiver() as receiver:
        hook = caller.webhook(receiver, event_types=["session.completed"])
        fired = caller.post(f"{hook.path}/test", status=202)
        until(lambda: receiver.requests)
        arrived = receiver.requests[0]
        assert json.loads(arrived.body)["type"] == "webhook.test"
        assert event_id(arrived) == fired["event_id"]
        assert "x-service-sequence" not in arrived.headers
        books = hook.settled()
        assert (books["accepted"], books["tests"]["succeeded"]) == (0, 1)


def test_during_a_rotation_each_of_the_two_secrets_verifies_alone(caller: Caller) -> None:
    with Receiver() as receiver:
        hook = caller.webhook(receiver)
        fresh = caller.post(f"{hook.path}/rotate-secret", {"overlap_seconds": 600}, 200)["secret"]
        session = caller.session()
        caller.findings(session, 1)
        until(lambda: receiver.requests)
        both = receiver.requests[0]
        for secret in (hook.secret, fresh):
            StandardWebhook(secret).verify(both.body, dict(both.headers))
        last = caller.post(f"{hook.path}/rotate-secret", {"overlap_seconds": 0}, 200)["secret"]
        caller.findings(session, 1)
        until(lambda: len(receiver.requests) > 1)
        after = receiver.requests[1]
        StandardWebhook(last).verify(after.body, dict(after.headers))
        for secret in (hook.secret, fresh):
            with pytest.raises(WebhookVerificationError):
                StandardWebhook(secret).verify(after.body, dict(after.headers))


def test_a_bulk_replay_keeps_its_rate_and_can_be_cancelled_and_resumed(caller: Caller) -> None:
    mood = Moody(400)
    count, rate = 20, 4
    with Receiver(mood) as receiver:
        hook = caller.webhook(receiver)
        caller.findings(caller.session(), count)
        assert hook.settled()["failed"] == count
        mood.status = 200
        receiver.requests.clear()
        wanted = {"status": "failed", "rate": rate}
        preview = caller.post(f"{hook.path}/replay", {**wanted, "dry_run": True}, 200)
        assert preview["count"] == count
        assert preview["seconds"] == count / rate

        began = time.monotonic()
        job = caller.post(f"{hook.path}/replay", wanted, 202)
        path = f"/v1/jobs/{job['id']}"
        until(lambda: caller.get(path)["progress"]["sent"] >= rate)
        cancelled = caller.post(f"{path}/cancel", status=200)
        assert cancelled["status"] == "cancelled"
        until(lambda: not hook.books()["replays"]["pending"])
        # Cancelled is cancelled: what was sent stays so, and the rest stays unsent.
        assert len(receiver.requests) < count

        assert caller.post(f"{path}/resume", status=200)["status"] in ("queued", "running")
        until(lambda: caller.get(path)["status"] == "succeeded")
        took = time.monotonic() - began
        progress = caller.get(path)["progress"]
        names = ("selected", "succeeded", "skipped")
        assert [progress[name] for name in names] == [count, count, 0]
        # The last second's worth may go at once.
        assert took >= (count - rate) / rate - 1
        books = hook.settled()
        assert books["replays"]["succeeded"] == count
        assert books["balanced"]
        assert set(Counter(map(event_id, receiver.requests)).values()) == {1}
        assert sequences(receiver.requests) == list(range(1, count + 1))
        # All of it has arrived since, so there is nothing left to send again.
        again = caller.post(f"{hook.path}/replay", {**wanted, "dry_run": True}, 200)
        assert (again["count"], again["left_out"]["arrived_since"]) == (0, count)


def test_disabling_cancels_what_waits_and_a_replay_brings_what_was_skipped(caller: Caller) -> None:
    mood = Moody(500)
    with Receiver(mood) as receiver:
        hook = caller.webhook(receiver)
        session = caller.session()
        caller.findings(session, 3)
        until(lambda: receiver.requests)
        caller.patch(hook.path, {"status": "disabled"})
        (skipped,) = caller.findings(session, 1)
        books = hook.settled()
        assert books["balanced"]
        assert (books["accepted"], books["cancelled"]) == (3, 3)
        refused = caller.ask("POST", f"{hook.path}/test")
        assert refused.status_code == 409
        assert refused.json()["type"].endswith("/problems/webhook-disabled")

        mood.status = 200
        receiver.requests.clear()
        caller.patch(hook.path, {"status": "enabled"})
        wanted = {"status": ["cancelled", "skipped"]}
        job = caller.post(f"{hook.path}/replay", wanted, 202)
        assert job["progress"]["selected"] == 4
        until(lambda: len(set(map(event_id, receiver.requests))) == 4)
        assert skipped["id"] in {json.loads(each.body)["data"]["id"] for each in receiver.requests}
        assert hook.settled()["replays"]["succeeded"] == 4


def test_a_deleted_webhook_is_sent_nothing_and_its_history_stays(caller: Caller) -> None:
    with Receiver() as receiver, Receiver() as other:
        hook, second = caller.webhook(receiver), caller.webhook(other)
        session = caller.session()
        caller.findings(session, 2)
        assert hook.settled()["succeeded"] == 2
        caller.delete(hook.path)
        caller.findings(session, 1)
        assert second.settled()["succeeded"] == 3
        caller.get(hook.path, 404)
        assert caller.ask("POST", f"{hook.path}/test").status_code == 404
        assert len(receiver.requests) == 2
        assert [each["status"] for each in hook.deliveries()] == ["succeeded", "succeeded"]
        assert hook.books()["accepted"] == 2


def test_a_receiver_that_was_away_catches_up_by_sequence(caller: Caller) -> None:
    with Receiver() as receiver:
        hook = caller.webhook(receiver)
        findings = caller.findings(caller.session(), 25)
        seen, after = [], 0
        while page := caller.get(f"{hook.path}/deliveries", after=after, limit=10)["data"]:
            seen += page
            after = page[-1]["sequence"]
        assert [each["sequence"] for each in seen] == list(range(1, 26))
        assert [each["payload"]["data"]["id"] for each in seen] == [each["id"] for each in findings]


def test_a_killed_worker_and_an_emptied_redis_lose_no_event(
    stack: RunningStack, caller: Caller
) -> None:
    count = 300
    killed = threading.Event()

    def answer(request: Request) -> bytes:
        # Whatever the machine, the worker is killed in the middle of its work.
        if len(receiver.requests) > count // 6:
            killed.wait(FAULT_SECONDS)
        return OK

    with Receiver(answer) as receiver:
        hook = caller.webhook(receiver)
        caller.findings(caller.session(), count)
        until(lambda: len(receiver.requests) > count // 6)
        stack.kill_worker()
        stack.flush_redis()
        assert len(receiver.requests) < count
        killed.set()
        until(lambda: len(set(map(event_id, receiver.requests))) == count, FAULT_SECONDS)
        books = hook.settled(FAULT_SECONDS)
        assert books["balanced"]
        assert (books["accepted"], books["succeeded"]) == (count, count)
        assert sequences(receiver.requests) == list(range(1, count + 1))
        by_event = {
            event_id(each): each.headers["x-service-sequence"] for each in receiver.requests
        }
        assert len(set(by_event.values())) == count
        for each in receiver.requests:
            StandardWebhook(hook.secret).verify(each.body, dict(each.headers))
