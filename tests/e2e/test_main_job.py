"""The main job on a whole stack: a finding becomes a signed delivery, whatever happens."""

import json
import threading

import pytest
from standardwebhooks.webhooks import Webhook as StandardWebhook
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
