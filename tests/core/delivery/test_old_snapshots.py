"""Searches for open deliveries begin beyond what an old snapshot keeps, and pass over nothing."""

import threading
from collections.abc import Iterator
from uuid import UUID

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from app.core.delivery import claims, sweeping
from app.core.delivery.lanes import lanes
from app.core.replay import replay
from app.database import Database
from app.settings import Settings
from tests.core.delivery.test_outcomes import recorded, succeeded
from tests.support.database.databases import waiting
from tests.support.faults import until
from tests.support.workers.outbox import Outbox

DELIVERED = 300
# Of one claim: its own row by two indexes, and what was delivered since the position was taken.
FEW = 40


@pytest.fixture
def outbox(fresh_database: Database, settings: Settings) -> Outbox:
    return Outbox.of_new_tenant(fresh_database, settings)


@pytest.fixture
def webhook(outbox: Outbox) -> UUID:
    return outbox.webhook()


@pytest.fixture
def snapshot(outbox: Outbox) -> Iterator[None]:
    """Keep all that was deleted since, as a dump does."""
    with outbox.database.across_tenants(snapshot=True) as session:
        session.execute(text("SELECT FROM tenants"))
        session.execute(text("SET LOCAL idle_in_transaction_session_timeout = 0"))
        yield


def deliver(outbox: Outbox, webhook: UUID, count: int) -> None:
    for _ in range(count // 50):
        outbox.emit(50)
        claimed = outbox.claim(webhook, 50)
        recorded(outbox.database, *(succeeded(outbox.tenant_id, webhook, each) for each in claimed))


def look_anew(outbox: Outbox) -> None:
    """Let the next claim take the lane's position again, as it does once a second."""
    outbox.run("UPDATE lanes SET open_from[6] = 'epoch' WHERE open_from IS NOT NULL")


def entries_read(session: Session) -> int:
    """Count the entries of the hot tables' indexes that this connection has read."""
    query = """
    SELECT sum(pg_stat_get_xact_tuples_returned(indexrelid)) FROM pg_index
     WHERE indrelid IN ('open_deliveries'::regclass, 'lanes'::regclass)
    """
    return int(session.scalars(text(query)).one())


@pytest.mark.usefixtures("snapshot")
def test_a_claim_reads_little_however_much_was_delivered_since_a_snapshot(
    outbox: Outbox, webhook: UUID
) -> None:
    deliver(outbox, webhook, DELIVERED)
    look_anew(outbox)
    outbox.claim(webhook)
    outbox.emit()
    with outbox.database.transaction(outbox.tenant_id) as session:
        before = entries_read(session)
        lane = lanes.load(session, outbox.tenant_id, webhook)
        assert lane is not None
        assert len(claims.claim(session, lane, 10)()) == 1
        lanes.reschedule(session, outbox.tenant_id, webhook)
        assert entries_read(session) - before < FEW


@pytest.mark.usefixtures("snapshot")
def test_a_sweep_reads_little_however_much_was_delivered_since_a_snapshot(
    outbox: Outbox, webhook: UUID
) -> None:
    deliver(outbox, webhook, DELIVERED)
    for _ in range(3):
        outbox.swept()
    with outbox.database.across_tenants(scans=False) as session:
        before = entries_read(session)
        sweeping.wake(session)
        sweeping.due(session)
        assert entries_read(session) - before < FEW


def test_an_event_that_is_committed_late_is_claimed_and_swept(
    outbox: Outbox, webhook: UUID
) -> None:
    with outbox.database.transaction(outbox.tenant_id) as late:
        late.execute(
            text(
                "SELECT emit_events(:t, 'x', ARRAY[id_beside(:w)], ARRAY[''::bytea],"
                " ARRAY[:w]::uuid[], now(), interval '0', NULL)"
            ),
            {"t": outbox.tenant_id, "w": outbox.emit()[0]},
        )
        for _ in range(3):
            outbox.emit()
            look_anew(outbox)
            assert outbox.claim(webhook)
            outbox.swept()
        outbox.run("UPDATE lanes SET due_at = NULL, ring_at = NULL")
    assert webhook in outbox.swept()
    look_anew(outbox)
    assert [row.sequence for row in outbox.claim(webhook)] == [5]


def test_a_delivery_that_waits_for_a_retry_is_found_again(outbox: Outbox, webhook: UUID) -> None:
    outbox.emit(2)
    first, _ = outbox.claim(webhook)
    outbox.run("UPDATE open_deliveries SET lease_until = clock_timestamp()")
    for _ in range(2):
        look_anew(outbox)
        again = outbox.claim(webhook)
        assert {row.id for row in again} >= {first.id}
        outbox.run("UPDATE open_deliveries SET lease_until = clock_timestamp()")


def test_an_urgent_delivery_from_before_the_first_numbering_is_claimed(
    outbox: Outbox, webhook: UUID
) -> None:
    with outbox.database.transaction(outbox.tenant_id) as session:
        test = replay.fire_test(session, outbox.caller, webhook)
    outbox.emit(2)
    outbox.number(webhook)
    outbox.emit()
    claimed = outbox.claim(webhook)
    assert claimed[0].id == test.id
    assert [row.sequence for row in claimed[1:]] == [1, 2, 3]


def test_a_sweep_beside_another_notes_no_more_than_it_has_read(outbox: Outbox) -> None:
    outbox.webhook()
    outbox.emit()

    def sweep() -> None:
        with outbox.database.across_tenants(scans=False) as session:
            sweeping.wake(session)

    with outbox.database.across_tenants() as other:
        other.execute(text("SELECT FROM sweeps FOR UPDATE"))
        sweeper = threading.Thread(target=sweep)
        sweeper.start()
        until(lambda: waiting(outbox.database.engine))
        # After the sweep has read, and before the other one has looked at the clock.
        outbox.emit()
        other.execute(text("UPDATE sweeps SET settled = clock_timestamp()"))
    sweeper.join()
    (missed,) = outbox.rows(
        "SELECT max(next_attempt_at) > (SELECT through FROM sweeps) AS is_ahead"
        "  FROM open_deliveries"
    )
    assert missed["is_ahead"]
