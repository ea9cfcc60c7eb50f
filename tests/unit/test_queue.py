"""The doorbell, on a real Valkey that is frozen, emptied and filled with rubbish."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import dramatiq
import pytest
import redis
from dramatiq import Message
from dramatiq.brokers.redis import RedisBroker

from app import heartbeats
from app.lib.breaker import Breaker
from app.lib.metric_registry import Counter
from app.metrics import BELL_ERRORS, BELL_MESSAGES, BELL_SKIPPED
from app.queue import Bell, connect
from tests.support.faults import Hands, OwnValkey, until

TENANT, WEBHOOK = uuid4(), uuid4()
NOBODY_LISTENS = "redis://127.0.0.1:1/0"


def messages(client: Any, queue: str) -> list[Message[None]]:
    """Read a queue in its order, as a worker would."""
    ids = client.lrange(f"dramatiq:{queue}", 0, -1)
    return [Message.decode(client.hget(f"dramatiq:{queue}.msgs", each)) for each in ids]


def counted(bell: Bell, *counters: Counter) -> list[float]:
    """Return what a bell has counted so far."""
    return [bell.tally.value(each) for each in counters]


def seconds(call: Callable[[], object]) -> float:
    """Time a call."""
    began = time.monotonic()
    call()
    return time.monotonic() - began


def test_a_bell_without_redis_never_rings() -> None:
    bell = Bell(None)

    bell.ring_lanes([(TENANT, WEBHOOK)])
    bell.ring("sweep", ())
    bell.end_debounce(WEBHOOK)

    assert counted(bell, BELL_MESSAGES, BELL_ERRORS) == [0, 0]
    assert bell.presence() is None


def test_a_name_that_no_actor_has_is_an_error_even_when_redis_is_away() -> None:
    for bell in (Bell(None), Bell(NOBODY_LISTENS)):
        with pytest.raises(KeyError):
            bell.ring("swep", ())


def test_a_ring_is_stored_just_as_dramatiq_stores_its_own(own_valkey: OwnValkey) -> None:
    broker: Any = RedisBroker
    declare = dramatiq.actor(
        actor_name="run_job",
        queue_name="jobs",
        broker=broker(client=connect(own_valkey.url, 5.0), middleware=[]),
    )
    declare(print).send_with_options(args=("a", "b"), max_age=5000)
    theirs = messages(own_valkey.client, "jobs")[0].asdict()
    their_keys = {key: own_valkey.client.type(key) for key in own_valkey.client.scan_iter()}
    own_valkey.client.flushall()

    Bell(own_valkey.url).ring("run_job", ("a", "b"), max_age_ms=5000)

    ours = messages(own_valkey.client, "jobs")[0].asdict()
    assert ours.keys() == theirs.keys()
    for same in ("queue_name", "actor_name", "args", "kwargs"):
        assert ours[same] == theirs[same]
    assert ours["options"].keys() == theirs["options"].keys()
    assert ours["options"]["max_age"] == 5000
    assert own_valkey.client.hkeys("dramatiq:jobs.msgs") == [
        ours["options"]["redis_message_id"].encode()
    ]
    del their_keys[b"dramatiq:__heartbeats__"]
    assert {key: own_valkey.client.type(key) for key in own_valkey.client.scan_iter()} == their_keys


def test_a_lane_is_rung_once_until_its_worker_looks(own_valkey: OwnValkey) -> None:
    bell = Bell(own_valkey.url)
    for _ in range(5):
        bell.ring_lanes([(TENANT, WEBHOOK), (TENANT, WEBHOOK)])
    assert len(messages(own_valkey.client, "deliver")) == 1

    bell.end_debounce(WEBHOOK)
    bell.ring_lanes([(TENANT, WEBHOOK)])

    assert len(messages(own_valkey.client, "deliver")) == 2


def test_a_full_lane_is_rung_by_nobody_for_half_a_second_at_most(own_valkey: OwnValkey) -> None:
    bell, other = Bell(own_valkey.url), uuid4()
    bell.note_full(WEBHOOK, full=True)
    assert bell.ring_lanes([(TENANT, WEBHOOK), (TENANT, other)]) == 1
    assert (bell.end_debounce(WEBHOOK), bell.end_debounce(other)) == (True, False)
    bell.note_full(WEBHOOK, full=False)
    assert not bell.end_debounce(WEBHOOK)
    assert bell.ring_lanes([(TENANT, WEBHOOK)]) == 1
    bell.end_debounce(WEBHOOK)
    bell.note_full(WEBHOOK, full=True)
    until(lambda: bell.ring_lanes([(TENANT, WEBHOOK)]) == 1)


def test_a_lane_whose_message_was_lost_can_be_rung_again_after_two_seconds(
    own_valkey: OwnValkey,
) -> None:
    bell = Bell(own_valkey.url)
    began = time.monotonic()
    bell.ring_lanes([(TENANT, WEBHOOK)])
    own_valkey.client.delete("dramatiq:deliver", "dramatiq:deliver.msgs")

    def rung() -> bool:
        bell.ring_lanes([(TENANT, WEBHOOK)])
        return bool(own_valkey.client.llen("dramatiq:deliver"))

    until(rung)
    # Redis' clock counts them; how much later this one looks depends on the machine.
    assert time.monotonic() - began > 1.9
    # And the next one's are counted as well: -1 would be a flag without an end.
    assert own_valkey.client.pttl(f"bell:{WEBHOOK.hex}") in (-2, *range(2_001))


def test_thousands_of_lanes_are_rung_at_once(own_valkey: OwnValkey) -> None:
    lanes = [(TENANT, uuid4()) for _ in range(3_000)]
    bell = Bell(own_valkey.url)

    bell.ring_lanes(iter(lanes))

    assert [message.args[1] for message in messages(own_valkey.client, "deliver")] == [
        str(webhook) for _, webhook in lanes
    ]
    assert counted(bell, BELL_MESSAGES) == [3_000]


def test_a_queue_that_is_not_drained_stops_growing(own_valkey: OwnValkey) -> None:
    own_valkey.client.rpush("dramatiq:deliver", *range(10_000))
    bell = Bell(own_valkey.url)

    bell.ring_lanes([(TENANT, WEBHOOK)])

    assert own_valkey.client.llen("dramatiq:deliver") == 10_000
    assert counted(bell, BELL_SKIPPED) == [1]


def test_a_refused_connection_costs_the_caller_next_to_nothing() -> None:
    bell = Bell(NOBODY_LISTENS, clock=Hands())

    # Milliseconds; redis-py by itself tries for four seconds.
    assert seconds(lambda: bell.ring_lanes([(TENANT, WEBHOOK)])) < 3
    assert counted(bell, BELL_ERRORS, BELL_SKIPPED) == [1, 0]
    # Who is skipped asks nobody.
    bell.ring_many("sweep", [()])
    assert counted(bell, BELL_ERRORS, BELL_SKIPPED) == [1, 1]


@pytest.mark.parametrize("known", [True, False], ids=["a known server", "a new connection"])
def test_a_frozen_redis_costs_half_a_second_once_in_five(
    own_valkey: OwnValkey, known: bool
) -> None:
    clock = Hands()
    bell = Bell(own_valkey.url, clock=clock)
    if known:
        assert bell.presence() is not None
    with own_valkey.frozen():
        # Half a second; redis-py by itself waits for as long as Redis is frozen.
        assert 0.4 < seconds(lambda: bell.ring_lanes([(TENANT, WEBHOOK)])) < 5
        bell.ring_lanes([(TENANT, WEBHOOK)])
        assert bell.presence() is None
        assert counted(bell, BELL_ERRORS, BELL_SKIPPED) == [1, 2]

    clock.forward(4.9)
    assert bell.presence() is None
    assert counted(bell, BELL_ERRORS, BELL_SKIPPED) == [1, 3]
    clock.forward(0.2)
    assert bell.presence() is not None
    bell.ring_lanes([(TENANT, uuid4())])
    assert counted(bell, BELL_MESSAGES) == [1]


def test_many_callers_of_a_frozen_redis_wait_no_longer_than_one(own_valkey: OwnValkey) -> None:
    bell = Bell(own_valkey.url)
    with own_valkey.frozen(), ThreadPoolExecutor(32) as threads:
        rings = [
            threads.submit(seconds, lambda: bell.ring_lanes([(TENANT, uuid4())])) for _ in range(32)
        ]

        # Half a second; one after the other it would be sixteen.
        assert max(ring.result() for ring in rings) < 8


def test_a_restart_in_between_is_not_noticed(own_valkey: OwnValkey) -> None:
    bell = Bell(own_valkey.url)
    bell.ring("run_job", (TENANT, uuid4()))
    with own_valkey.away(emptied=True):
        pass

    bell.ring("run_job", (TENANT, uuid4()))

    assert counted(bell, BELL_ERRORS) == [0]
    assert len(messages(own_valkey.client, "jobs")) == 1


def test_rubbish_where_the_queue_should_be_is_counted_and_forgotten(own_valkey: OwnValkey) -> None:
    own_valkey.client.set("dramatiq:jobs", "rubbish")
    bell = Bell(own_valkey.url)

    bell.ring("run_job", (TENANT, uuid4()))

    assert counted(bell, BELL_ERRORS, BELL_MESSAGES) == [1, 0]


def test_the_roles_that_gave_a_sign_of_life_are_present(own_valkey: OwnValkey) -> None:
    bell = Bell(own_valkey.url)
    assert bell.presence() == {"worker": False, "scheduler": False}

    bell.report(heartbeats.Process("worker"))

    assert bell.presence() == {"worker": True, "scheduler": False}
    (name,) = own_valkey.client.smembers(heartbeats.REPORTING)
    assert 0 < own_valkey.client.pttl(name) <= 15_000


def test_an_encrypted_address_is_dialled_encrypted() -> None:
    client = connect("rediss://:secret@redis.example.com:6380/0", 0.5)

    assert client.connection_pool.connection_class is redis.SSLConnection


def test_after_a_failure_callers_are_held_back_until_the_period_is_over() -> None:
    clock = Hands()
    breaker = Breaker(60, clock)
    breaker.failed()

    assert not breaker.admits()
    clock.forward(59)
    assert not breaker.admits()
    clock.forward(2)
    assert breaker.admits()


def test_one_of_many_callers_is_admitted_as_the_probe() -> None:
    clock = Hands()
    breaker = Breaker(60, clock)
    breaker.failed()
    clock.forward(61)

    with ThreadPoolExecutor(16) as threads:
        admitted = [
            future.result() for future in [threads.submit(breaker.admits) for _ in range(16)]
        ]

    assert sorted(admitted) == [False] * 15 + [True]


def test_only_the_first_failure_and_the_first_success_are_news() -> None:
    breaker = Breaker(60)

    assert [breaker.failed(), breaker.failed()] == [True, False]
    assert [breaker.succeeded(), breaker.succeeded()] == [True, False]
