"""What a receiver gets: bytes, signatures, retries, and nothing from a suspended tenant."""

from datetime import timedelta
from uuid import UUID

import pytest
from sqlalchemy import Engine, text
from standardwebhooks import Webhook as StandardWebhook
from svix.webhooks import Webhook as SvixWebhook

from app import clock, ids
from app.core import tenants
from app.core.webhooks import webhooks
from jobs.delivery import lane_run
from tests.support.servers.receivers import OK, Receiver, Request, http_answer
from tests.support.workers.worlds import World


def test_what_arrives_is_verified_by_the_libraries_receivers_use(world: World) -> None:
    with Receiver() as receiver:
        webhook = world.webhook(receiver.url())
        event_ids = world.emit(3)
        world.turn(webhook)
    assert len(receiver.requests) == 3
    secret = world.secrets[webhook]
    for request in receiver.requests:
        StandardWebhook(secret).verify(request.body.decode(), dict(request.headers))
        SvixWebhook(secret).verify(request.body, dict(request.headers))
    assert {request.headers["webhook-id"] for request in receiver.requests} == {
        ids.text("evt", event_id) for event_id in event_ids
    }
    sequences = [request.headers["x-service-sequence"] for request in receiver.requests]
    assert sequences == ["1", "2", "3"]
    assert all(request.headers["x-service-attempt"] == "1" for request in receiver.requests)
    assert all(row["status"] == "succeeded" for row in world.deliveries(webhook))
    assert world.books(webhook)["balanced"]
    assert world.lane(webhook)["due_at"] is None


def test_a_retry_carries_the_same_bytes_and_id_and_a_signature_of_its_own(world: World) -> None:
    answers = iter([http_answer(500), OK])
    with Receiver(lambda _: next(answers)) as receiver:
        webhook = world.webhook(receiver.url())
        world.emit()
        world.turn(webhook)
        world.turn(webhook)
    first, second = receiver.requests
    assert first.body == second.body
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert (first.headers["x-service-attempt"], second.headers["x-service-attempt"]) == ("1", "2")
    secret = world.secrets[webhook]
    StandardWebhook(secret).verify(second.body.decode(), dict(second.headers))
    (row,) = world.deliveries(webhook)
    assert (row["status"], row["attempts"]) == ("succeeded", 2)
    assert [(each["number"], each["outcome"]) for each in world.attempts()] == [
        (1, "refused"),
        (2, "succeeded"),
    ]


def test_deliveries_of_a_suspended_tenant_wait_and_spend_no_attempt(world: World) -> None:
    with Receiver() as receiver:
        webhook = world.webhook(receiver.url())
        world.emit(2)
        with world.database.transaction(world.tenant_id) as session:
            assert tenants.suspend(session, world.tenant_id, None).result
        world.turn(webhook)
        assert receiver.requests == []
        assert {(row["status"], row["attempts"]) for row in world.deliveries(webhook)} == {
            ("pending", 0)
        }
        assert world.books(webhook)["balanced"]
        assert webhook not in _swept_anew(world)
        with world.database.transaction(world.tenant_id) as session:
            assert tenants.resume(session, world.tenant_id).result
        assert webhook in _swept_anew(world)
        world.turn(webhook)
        assert len(receiver.requests) == 2
    assert {row["status"] for row in world.deliveries(webhook)} == {"succeeded"}


def test_a_tenant_that_is_suspended_within_a_turn_is_sent_nothing_more(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What a claim has not sent is handed back after its first POST, not only after a second.
    monkeypatch.setattr(lane_run, "SLOWER_SECONDS", -1.0)

    def suspend(_: Request) -> bytes:
        with world.database.transaction(world.tenant_id) as session:
            tenants.suspend(session, world.tenant_id, None)
        return OK

    with Receiver(suspend) as receiver:
        webhook = world.webhook(receiver.url())
        world.emit(3)
        world.turn(webhook)
        assert len(receiver.requests) == 1
    assert sorted(row["status"] for row in world.deliveries(webhook)) == [
        "pending",
        "pending",
        "succeeded",
    ]


def _swept_anew(world: World) -> set[UUID]:
    """Sweep as if nothing had been rung before."""
    world.run("UPDATE lanes SET ring_at = NULL")
    return world.swept()


def test_a_delivery_fails_for_good_after_its_last_attempt(world: World) -> None:
    with Receiver(http_answer(404)) as receiver:
        webhook = world.webhook(receiver.url())
        world.emit()
        for _ in range(4):
            world.turn(webhook)
        assert len(receiver.requests) == 3
        (row,) = world.deliveries(webhook)
        assert (row["status"], row["attempts"]) == ("retrying", 3)
        assert timedelta(seconds=20) < row["next_attempt_at"] - clock.now() < timedelta(seconds=75)
        _make_due(world, webhook)
        world.turn(webhook)
    (row,) = world.deliveries(webhook)
    assert (row["status"], row["attempts"], row["next_attempt_at"]) == ("failed", 4, None)
    assert world.books(webhook) | {"failed": 1, "pending": 0} == world.books(webhook)


def test_a_redirect_is_a_failure_and_is_not_followed(world: World) -> None:
    with (
        Receiver() as target,
        Receiver(http_answer(302, headers={"Location": target.url()})) as receiver,
    ):
        webhook = world.webhook(receiver.url())
        world.emit()
        world.turn(webhook)
        assert target.requests == []
    assert world.attempts()[0]["status_code"] == 302


def test_during_an_overlap_each_secret_verifies_alone(world: World) -> None:
    with Receiver() as receiver:
        webhook = world.webhook(receiver.url())
        with world.database.transaction(world.tenant_id) as session:
            _, new = webhooks.rotate_secret(
                session, world.caller, world.settings, webhook, timedelta(hours=1)
            )
        world.emit()
        world.turn(webhook)
    (request,) = receiver.requests
    for secret in (world.secrets[webhook], new):
        StandardWebhook(secret).verify(request.body.decode(), dict(request.headers))
        SvixWebhook(secret).verify(request.body, dict(request.headers))
    assert request.headers["x-service-signature-v2"].count("v2=") == 2


def test_a_worker_that_wakes_after_its_lease_was_taken_changes_nothing(
    world: World, admin_engine: Engine
) -> None:
    def steal(_: Request) -> bytes:
        with admin_engine.begin() as connection:
            connection.execute(
                text("UPDATE open_deliveries SET claim_no = claim_no + 1 WHERE tenant_id = :t"),
                {"t": world.tenant_id},
            )
        return OK

    with Receiver(steal) as receiver:
        webhook = world.webhook(receiver.url())
        world.emit()
        world.turn(webhook)
        assert len(receiver.requests) == 1
    (row,) = world.deliveries(webhook)
    assert (row["status"], row["attempts"]) == ("sending", 0)
    assert world.attempts() == []


def test_a_delivery_that_loses_five_workers_is_given_up_as_lost(world: World) -> None:
    with Receiver() as receiver:
        webhook = world.webhook(receiver.url())
        world.emit()
        world.run(
            "UPDATE open_deliveries SET status = 'sending', lease_until = clock_timestamp(),"
            " claims_lost = 4 WHERE webhook_id = :w",
            w=webhook,
        )
        world.turn(webhook)
        first_attempt = world.attempts()[0]
    assert first_attempt["outcome"] == "worker_lost"
    assert world.lane(webhook)["consecutive_failures"] == 0


def test_what_was_not_sent_is_handed_back_at_once(world: World) -> None:
    slow_down = http_answer(503)
    with Receiver(slow_down) as receiver:
        webhook = world.webhook(receiver.url())
        world.emit(10)
        world.turn(webhook)
        assert len(receiver.requests) == 1
    waiting = [row for row in world.deliveries(webhook) if row["status"] == "pending"]
    assert len(waiting) == 9


def _make_due(world: World, webhook: UUID) -> None:
    world.run(
        "UPDATE open_deliveries SET next_attempt_at = clock_timestamp() WHERE webhook_id = :w",
        w=webhook,
    )
