"""A claim numbers what it takes, without a gap beside other numbering; each outcome counts once."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

import pytest

from app.core.delivery import outcomes
from app.core.delivery.history import catch_up
from app.core.delivery.lanes import lanes
from app.database import Database
from app.settings import Settings
from tests.support.callers.api import FreshTenant
from tests.support.callers.sending import outcome_of
from tests.support.workers.outbox import Outbox


@pytest.fixture
def outbox(database: Database, settings: Settings, tenant: FreshTenant) -> Outbox:
    return Outbox(database, settings, tenant.id)


@pytest.fixture
def webhook(outbox: Outbox) -> UUID:
    return outbox.webhook()


def claimed(outbox: Outbox, webhook: UUID, limit: int) -> list[int | None]:
    """Claim rows; return their numbers."""
    return [row.sequence for row in outbox.claim(webhook, limit)]


def test_a_claim_numbers_the_oldest_rows_it_takes_and_no_others(
    outbox: Outbox, webhook: UUID
) -> None:
    outbox.emit(5)
    assert claimed(outbox, webhook, 3) == [1, 2, 3]
    numbers = [row["sequence"] for row in outbox.rows("SELECT * FROM deliveries ORDER BY id")]
    assert numbers == [1, 2, 3, None, None]
    assert outbox.books(webhook)["accepted"] == 5
    assert claimed(outbox, webhook, 3) == [4, 5]


def test_a_test_delivery_has_no_number_and_a_row_claimed_again_keeps_its_own(
    outbox: Outbox, webhook: UUID
) -> None:
    outbox.emit(2)
    assert claimed(outbox, webhook, 1) == [1]
    outbox.run("UPDATE open_deliveries SET lease_until = clock_timestamp() WHERE sequence = 1")
    outbox.run(
        "UPDATE open_deliveries SET kind = 'test', priority = 0, fresh = false,"
        " next_attempt_at = clock_timestamp()"
        " WHERE sequence IS NULL"
    )
    assert claimed(outbox, webhook, 10) == [None, 1]
    outbox.emit()
    assert claimed(outbox, webhook, 10) == [2]


POSTED = 120


@dataclass(frozen=True)
class Crowd:
    """Callers and workers of one webhook, who post, claim, read its feed and sweep at once."""

    outbox: Outbox
    webhook: UUID

    def post(self) -> None:
        for _ in range(POSTED // 4):
            self.outbox.emit()

    def claim(self) -> list[int | None]:
        mine: list[int | None] = []
        while not self.all_numbered():
            mine += claimed(self.outbox, self.webhook, 3)
        return mine

    def read(self) -> list[int | None]:
        seen: list[int | None] = []
        while len(seen) < POSTED:
            with self.outbox.database.transaction(self.outbox.tenant_id) as session:
                tenant_id, after = self.outbox.tenant_id, len(seen)
                page, _ = catch_up.after(session, tenant_id, self.webhook, after, limit=7)
            seen += [entry.sequence for entry in page]
        return seen

    def sweep(self) -> None:
        while not self.all_numbered():
            with self.outbox.database.transaction(self.outbox.tenant_id) as session:
                lanes.number_if_free(session, self.outbox.tenant_id, self.webhook)

    def all_numbered(self) -> bool:
        (row,) = self.outbox.rows("SELECT count(sequence) AS numbered FROM deliveries")
        return bool(row["numbered"] == POSTED)


def test_claims_reads_and_sweeps_at_once_leave_no_gap(outbox: Outbox, webhook: UUID) -> None:
    crowd = Crowd(outbox, webhook)
    with ThreadPoolExecutor(10) as pool:
        ending = [pool.submit(crowd.post) for _ in range(4)] + [pool.submit(crowd.sweep)]
        claims = [pool.submit(crowd.claim) for _ in range(3)]
        reads = [pool.submit(crowd.read) for _ in range(2)]
        for each in ending:
            each.result(60)
        assert [each.result(60) for each in reads] == [list(range(1, POSTED + 1))] * 2
        claimed = [number for each in claims for number in each.result(60)]
    assert len(claimed) == len(set(claimed)), "no number was claimed twice"
    books = outbox.books(webhook, exact=True)
    numbers = [row["sequence"] for row in outbox.deliveries(webhook)]
    assert numbers == list(range(1, POSTED + 1))
    assert (books["accepted"], books["pending"], books["balanced"]) == (POSTED, POSTED, True)


def test_a_late_outcome_beside_its_successor_s_is_fenced_and_counts_once(
    outbox: Outbox, webhook: UUID
) -> None:
    outbox.emit()
    (late,) = outbox.claim(webhook)
    outbox.run("UPDATE open_deliveries SET lease_until = clock_timestamp()")
    (successor,) = outbox.claim(webhook)
    assert (late.id, late.claim_no + 1) == (successor.id, successor.claim_no)

    with outbox.database.across_tenants() as session:
        lane = lanes.load(session, outbox.tenant_id, webhook)
        assert lane is not None
        both = [outcome_of(lane, each) for each in (late, successor)]
        waits = {"first_pause": timedelta(seconds=30), "disable_after": timedelta(days=5)}
        told = outcomes.record(session, both, **waits)

    assert told.ended == {("event", "succeeded"): 1}
    assert [each.claim_no for each in told.fenced] == [late.claim_no]
    books = outbox.books(webhook)
    assert (books["succeeded"], books["balanced"], len(outbox.attempts())) == (1, True, 1)


def test_slots_are_read_from_outside_by_the_table_s_name(outbox: Outbox) -> None:
    webhook = outbox.webhook(max_in_flight=2)
    with outbox.database.transaction(outbox.tenant_id) as session:
        lane = lanes.load(session, outbox.tenant_id, webhook)
        assert lane is not None
        lanes.hold_slot(session, lane, 0x1F)
    query = "SELECT slot, holder, lease_until FROM lane_slots WHERE webhook_id = :w ORDER BY slot"
    held, free = (tuple(row.values()) for row in outbox.rows(query, w=webhook))
    assert held == (0, UUID(int=0x1F), lane.now + lanes.SLOT_LEASE)
    assert free == (1, None, None)

    # Of those that a lower limit has not yet taken away, none is hidden; of other tenants', all.
    outbox.run("UPDATE lanes SET slot_holders = '{1,2,3}', slot_leases = array_fill(now(), '{3}')")
    outbox.change(webhook, max_in_flight=1)
    assert [row["slot"] for row in outbox.rows(query, w=webhook)] == [0, 1, 2]
    assert Outbox.of_new_tenant(outbox.database, outbox.settings).rows(query, w=webhook) == []
