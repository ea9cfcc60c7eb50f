"""Ringing from a thread of its own: nothing is lost, nothing rung twice, no caller waits."""

import json
from uuid import UUID, uuid4

import pytest

from app import metrics, queue
from app.queue import Bell, WakeupBatcher, queue_key
from tests.support.faults import LONG_ENOUGH, Hands, OwnValkey, until


def rung(valkey: OwnValkey) -> list[UUID]:
    """Return the webhooks that were rung."""
    messages = valkey.client.hvals(f"{queue_key('deliver')}.msgs")
    return [UUID(json.loads(message)["args"][1]) for message in messages]


def test_every_lane_is_rung_once(own_valkey: OwnValkey) -> None:
    batcher = WakeupBatcher(Bell(own_valkey.url))
    lanes = [(uuid4(), uuid4()) for _ in range(200)]
    for lane in lanes * 3:
        batcher.ring([lane])
    batcher.close()
    assert sorted(rung(own_valkey)) == sorted(webhook for _, webhook in lanes)


def test_what_is_left_is_rung_before_the_end(own_valkey: OwnValkey) -> None:
    batcher = WakeupBatcher(Bell(own_valkey.url))
    lane = (uuid4(), uuid4())
    batcher.ring([lane])
    batcher.close()
    assert rung(own_valkey) == [lane[1]]


def test_no_caller_waits_for_a_frozen_redis(
    own_valkey: OwnValkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    # For ever, as far as this test is concerned.
    monkeypatch.setattr(queue, "_TIMEOUT_SECONDS", 100 * LONG_ENOUGH)
    batcher = WakeupBatcher(Bell(own_valkey.url))
    with own_valkey.frozen():
        for _ in range(100):
            batcher.ring([(uuid4(), uuid4())])
    batcher.close()


def test_a_redis_that_comes_back_is_rung_again(own_valkey: OwnValkey) -> None:
    clock = Hands()
    bell = Bell(own_valkey.url, clock=clock)
    batcher = WakeupBatcher(bell)
    with own_valkey.away():
        batcher.ring([(uuid4(), uuid4())])
        until(lambda: bell.tally.value(metrics.BELL_ERRORS))
    clock.forward(6)
    lane = (uuid4(), uuid4())

    def ring_and_see() -> bool:
        batcher.ring([lane])
        return lane[1] in rung(own_valkey)

    until(ring_and_see)
    batcher.close()
