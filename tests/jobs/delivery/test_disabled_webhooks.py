"""A webhook is disabled by 410 or its tenant, and its deliveries are cancelled."""

import json
from datetime import timedelta

import pytest
import structlog
from sqlalchemy import Engine, text

from app import clock, ids
from app.core.delivery import cancelling
from app.core.delivery.lanes import lanes
from app.core.replay import bulk_replay
from app.core.replay.replay_selection import Status, Wanted
from app.errors import Conflict
from tests.support.servers.receivers import OK, Receiver, Request, http_answer
from tests.support.workers.worlds import World


def test_410_disables_the_webhook_cancels_what_waits_and_tells_the_others(world: World) -> None:
    with Receiver(http_answer(410)) as gone, Receiver() as other:
        webhook = world.webhook(gone.url())
        world.emit(3)
        other_webhook = world.webhook(other.url())
        world.turn(webhook)
        world.turn(other_webhook)
        assert len(gone.requests) == 1
    statuses = sorted(row["status"] for row in world.deliveries(webhook))
    assert statuses == ["cancelled", "cancelled", "failed"]
    assert world.books(webhook)["balanced"]
    (told,) = (json.loads(request.body) for request in other.requests)
    assert told["type"] == "webhook.disabled"
    assert told["data"]["webhook_id"] == ids.text("whk", webhook)
    (hook,) = world.rows("SELECT * FROM webhooks WHERE id = :w", w=webhook)
    assert (hook["status"], hook["disabled_reason"]) == ("disabled", "gone")
    actions = [row["action"] for row in world.rows("SELECT action FROM audit_entries ORDER BY seq")]
    assert actions[-1] == "webhook.disable"


def test_a_webhook_that_cannot_be_disabled_keeps_its_outcome(
    world: World, admin_engine: Engine
) -> None:
    """Without an audit entry nothing is disabled: the next attempt asks for it again."""
    with Receiver(http_answer(410)) as gone:
        webhook = world.webhook(gone.url())
        world.emit()
        with admin_engine.begin() as connection:
            connection.execute(
                text("UPDATE audit_heads SET seq = seq - 1 WHERE tenant_id = :tenant"),
                {"tenant": world.tenant_id},
            )
        with structlog.testing.capture_logs() as lines:
            world.turn(webhook)
    (row,) = world.deliveries(webhook)
    assert (row["status"], row["attempts"]) == ("failed", 1)
    (hook,) = world.rows("SELECT * FROM webhooks WHERE id = :w", w=webhook)
    assert hook["status"] == "enabled"
    events = [line["event"] for line in lines]
    assert events.count("webhook_not_disabled") == 1
    assert not {"outcomes_refused", "outcome_fenced"} & {*events}


def test_a_disabled_webhook_is_sent_nothing_even_what_was_committed_late(world: World) -> None:
    with Receiver() as receiver:
        webhook = world.webhook(receiver.url())
        world.emit(2)
        world.run("UPDATE webhooks SET status = 'disabled' WHERE id = :w", w=webhook)
        world.turn(webhook)
        assert receiver.requests == []
    assert {row["status"] for row in world.deliveries(webhook)} == {"cancelled"}
    assert world.books(webhook)["balanced"]


@pytest.mark.parametrize("ending", ["disabled", "deleted"])
@pytest.mark.parametrize("status", [200, 500])
def test_what_was_in_flight_when_its_webhook_ended_is_succeeded_if_it_arrived(
    world: World, ending: str, status: int
) -> None:
    def end_while_in_flight(_: Request) -> bytes:
        if ending == "disabled":
            world.change(webhook, status="disabled")
        else:
            world.delete(webhook)
        return http_answer(status)

    with Receiver(end_while_in_flight) as receiver:
        webhook = world.webhook(receiver.url())
        world.emit(3)
        world.turn(webhook)
    sent, *unsent = world.deliveries(webhook)
    assert (sent["attempts"], sent["next_attempt_at"]) == (1, None)
    assert sent["status"] == ("succeeded" if status == 200 else "cancelled")
    assert [row["status"] for row in unsent] == ["cancelled"] * 2
    books = world.books(webhook, exact=True)
    arrived = int(status == 200)
    assert (books["succeeded"], books["cancelled"]) == (arrived, 3 - arrived)
    assert books["balanced"]
    (hour,) = world.rows("SELECT * FROM delivery_hours WHERE webhook_id = :w", w=webhook)
    assert (hour["attempted"], hour["succeeded"]) == (1, arrived)


def test_what_arrived_while_its_webhook_was_disabled_is_not_replayed(world: World) -> None:
    """Also where the webhook is enabled again before the answer comes."""

    def interrupt(_: Request) -> bytes:
        world.change(webhook, status="disabled")
        world.change(webhook, status="enabled")
        return OK

    with Receiver(interrupt) as receiver:
        webhook = world.webhook(receiver.url())
        world.emit(2)
        world.turn(webhook)
    wanted = Wanted(statuses=frozenset({Status.CANCELLED}), since=clock.now() - timedelta(hours=1))
    with world.database.transaction(world.tenant_id) as session:
        preview = bulk_replay.preview(session, world.caller, webhook, wanted)
    assert preview.count == 1


def test_a_large_backlog_is_cancelled_in_pieces_and_before_the_webhook_sends_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cancelling, "CANCEL_AT_ONCE", 10)
    monkeypatch.setattr(lanes, "NUMBER_AT_ONCE", 5)
    with Receiver() as receiver:
        webhook = world.webhook(receiver.url())
        world.emit(35)
        world.change(webhook, status="disabled")
        assert world.books(webhook) | {"cancelled": 10, "pending": 25} == world.books(webhook)
        world.turn(webhook)
        assert world.books(webhook)["cancelled"] == 20
        world.change(webhook, status="enabled")
        world.turn(webhook)
        assert receiver.requests == []
    books = world.books(webhook)
    assert books | {"accepted": 35, "cancelled": 35, "balanced": True} == books
    assert [row["sequence"] for row in world.deliveries(webhook)] == list(range(1, 36))


def test_a_webhook_is_not_enabled_while_workers_have_many_of_its_deliveries_to_cancel(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cancelling, "CANCEL_AT_ONCE", 10)
    monkeypatch.setattr(cancelling, "LEFT_AT_MOST", 20)
    monkeypatch.setattr(lanes, "NUMBER_AT_ONCE", 5)
    with Receiver() as receiver:
        webhook = world.webhook(receiver.url())
        world.emit(35)
        world.change(webhook, status="disabled")
        with pytest.raises(Conflict, match="25 are left"):
            world.change(webhook, status="enabled")
        assert world.books(webhook) | {"cancelled": 10, "pending": 25} == world.books(webhook)
        world.turn(webhook)
        world.change(webhook, status="enabled")
        world.turn(webhook)
        assert receiver.requests == []
    books = world.books(webhook)
    assert books | {"accepted": 35, "cancelled": 35, "balanced": True} == books
