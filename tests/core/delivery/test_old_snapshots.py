"""Searches for open deliveries begin beyond what an old snapshot keeps, and pass over nothing."""

import threading
from collections.abc import Iterator
from datetime import timedelta
from uuid import UUID

import pytest
from sqlalchemy import text

from app.core.delivery import claims, outcomes, sweeping
from app.core.delivery.lanes import lanes
from app.core.health import gauges
from app.core.replay import replay
from app.database import Database, Tx, cursor
from app.settings import Settings
from tests.support.callers.sending import outcome_of
from tests.support.database.databases import waiting
from tests.support.faults import until
from tests.support.workers.outbox import Outbox

# Turns at a lane before and after the one that is compared.
EARLY, LATE = 10, 80
# What a page more of an index may cost, here and there.
SLACK = 25


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


def look_anew(outbox: Outbox) -> None:
    """Let the next claim take the lane's position again, as it does once a second."""
    outbox.run("UPDATE lanes SET open_from[6] = 'epoch'")


def blocks_read(tx: Tx) -> int:
    """Count the blocks of the hot tables and their indexes that this connection has read."""
    row = (
        cursor(tx)
        .execute("""
    SELECT sum(pg_stat_get_xact_blocks_fetched(oid))::int FROM pg_class
     WHERE oid IN (SELECT unnest(ARRAY['open_deliveries', 'lanes', 'delivery_hours',
                                       'sweeps']::regclass[]))
        OR oid IN (SELECT indexrelid FROM pg_index
                    WHERE indrelid IN ('open_deliveries'::regclass, 'lanes'::regclass,
                                       'delivery_hours'::regclass))
    """)
        .fetchone()
    )
    assert row is not None
    return int(row[0])


class Reads:
    """Blocks that each step of a delivery reads."""

    def __init__(self, outbox: Outbox, webhook: UUID, *, recovers: bool = False) -> None:
        self._outbox = outbox
        self._webhook = webhook
        self._recovers = recovers

    def settle(self) -> None:
        """Take all positions again, as claims do each second and sweeps each five."""
        look_anew(self._outbox)
        # To the planner the table is empty, so that any index would do.
        self._outbox.run("ANALYZE open_deliveries, lanes")
        # A lane that was rung is looked at two seconds later: those that the quickest machine rings
        # meanwhile are no more, however old a snapshot is.
        self._outbox.run(
            "UPDATE sweeps SET through = clock_timestamp(),"
            " lanes_through = clock_timestamp() + interval '2 s'"
        )

    def turn(self) -> dict[str, int]:
        """Deliver one event as a worker does; return the blocks read by each step."""
        tenant_id, database = self._outbox.tenant_id, self._outbox.database
        self._outbox.emit()
        found = {}
        holder = 1
        with database.raw_transaction(tenant_id) as tx:
            before = blocks_read(tx)
            lane = lanes.load(tx, tenant_id, self._webhook)
            assert lane is not None
            lanes.hold_slot(tx, lane, holder)
            claimed = claims.claim(tx, lane, 10)()
            found["claim"] = blocks_read(tx) - before
        with database.across_tenants(scans=False) as session:
            before = blocks_read(session)
            outcomes.record(
                session,
                [outcome_of(lane, each) for each in claimed],
                first_pause=timedelta(seconds=30),
                disable_after=timedelta(days=5),
            )
            found["record"] = blocks_read(session) - before
        if self._recovers:
            self._outbox.run("UPDATE lanes SET recovering_since = clock_timestamp()")
        with database.raw_transaction(tenant_id) as tx:
            before = blocks_read(tx)
            lanes.lock(tx, [(tenant_id, self._webhook)])
            lanes.reschedule(tx, tenant_id, self._webhook, leaves=holder)
            found["leave"] = blocks_read(tx) - before
        with database.across_tenants(scans=False) as session:
            before = blocks_read(session)
            sweeping.wake(session)
            sweeping.due(session)
            found["sweep"] = blocks_read(session) - before
        with database.across_tenants(scans=False) as session:
            before = blocks_read(session)
            for read in gauges.OF_DATABASE:
                list(read(session, self._outbox.settings))
            found["gauges"] = blocks_read(session) - before
        return found


@pytest.mark.usefixtures("snapshot")
@pytest.mark.parametrize("recovers", [False, True])
def test_claim_record_and_sweep_read_no_more_however_old_a_snapshot_is(
    outbox: Outbox, webhook: UUID, recovers: bool
) -> None:
    reads = Reads(outbox, webhook, recovers=recovers)
    for _ in range(EARLY):
        reads.turn()
    reads.settle()
    early = reads.turn()
    for _ in range(LATE):
        reads.turn()
    reads.settle()
    # What an old snapshot costs each turn pays; a page that is split, one alone.
    turns = [reads.turn() for _ in range(5)]
    late = {step: min(turn[step] for turn in turns) for step in early}
    grown = {step: (early[step], late[step]) for step in early if late[step] > early[step] + SLACK}
    assert not grown


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
