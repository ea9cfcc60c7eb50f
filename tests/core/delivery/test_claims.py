"""A claim numbers what it takes: in one write, in order, without a gap, whoever else numbers."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from uuid import UUID

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from app import clock, ids
from app.core.callers import Caller, Role
from app.core.delivery import accounting, claims, events
from app.core.delivery.events import NewEvent
from app.core.delivery.history import catch_up
from app.core.delivery.lanes import lane_slots, lanes
from app.core.webhooks import webhooks
from app.database import Database
from app.settings import Settings
from tests.support.callers.api import FreshTenant


@pytest.fixture
def webhook(database: Database, settings: Settings, tenant: FreshTenant) -> UUID:
    caller = Caller(tenant.id, ids.new(), Role.ADMIN, None, "test")
    with database.transaction(tenant.id) as session:
        made, _ = webhooks.create(session, caller, settings, {"url": "http://127.0.0.1:9/"})
        return made.id


def emit(database: Database, tenant_id: UUID, count: int = 1) -> None:
    with database.transaction(tenant_id) as session:
        events.emit(session, tenant_id, [NewEvent("finding.created", {}, clock.now())] * count)


def claim(database: Database, tenant_id: UUID, webhook: UUID, limit: int) -> list[int | None]:
    with database.transaction(tenant_id) as session:
        lane = lanes.load(session, tenant_id, webhook)
        assert lane is not None
        return [row.sequence for row in claims.claim(session, lane, limit)()]


def test_a_claim_numbers_the_oldest_rows_it_takes_and_no_others(
    database: Database, tenant: FreshTenant, webhook: UUID
) -> None:
    emit(database, tenant.id, 5)
    assert claim(database, tenant.id, webhook, 3) == [1, 2, 3]
    with database.transaction(tenant.id) as session:
        numbers = "SELECT sequence FROM deliveries ORDER BY id"
        assert list(session.scalars(text(numbers))) == [1, 2, 3, None, None]
        assert accounting.of(session, tenant.id, webhook)["accepted"] == 5
    assert claim(database, tenant.id, webhook, 3) == [4, 5]


def test_who_holds_no_slot_claims_nothing(
    database: Database, tenant: FreshTenant, webhook: UUID
) -> None:
    holder = ids.new()
    emit(database, tenant.id)
    with database.raw_transaction(tenant.id) as tx:
        lane = lanes.load(tx, tenant.id, webhook)
        assert lane is not None
        refused = claims.claim(tx, lane, 1, holder)
        slot = lane_slots.take(tx, lane, holder)
        claimed = claims.claim(tx, lane, 1, holder)
    assert slot() is not None
    assert [len(refused()), len(claimed())] == [0, 1]


def test_a_claim_writes_each_row_once(
    database: Database, tenant: FreshTenant, webhook: UUID
) -> None:
    emit(database, tenant.id, 4)
    with database.transaction(tenant.id) as session:
        lane = lanes.load(session, tenant.id, webhook)
        assert lane is not None
        before = rows_written(session)
        assert len(claims.claim(session, lane, 10)()) == 4
        assert rows_written(session) - before == 4


def rows_written(session: Session) -> int:
    """Count the rows of deliveries that this connection has updated."""
    return int(
        session.scalars(
            text(
                "SELECT sum(pg_stat_get_xact_tuples_updated(inhrelid)) FROM pg_inherits"
                " WHERE inhparent = 'deliveries'::regclass"
            )
        ).one()
    )


def test_a_test_delivery_has_no_number_and_a_row_claimed_again_keeps_its_own(
    database: Database, tenant: FreshTenant, webhook: UUID
) -> None:
    emit(database, tenant.id, 2)
    assert claim(database, tenant.id, webhook, 1) == [1]
    with database.transaction(tenant.id) as session:
        session.execute(
            text("UPDATE deliveries SET next_attempt_at = clock_timestamp() WHERE sequence = 1")
        )
        session.execute(
            text("UPDATE deliveries SET kind = 'test', priority = 0 WHERE sequence IS NULL")
        )
    assert claim(database, tenant.id, webhook, 10) == [None, 1]
    emit(database, tenant.id)
    assert claim(database, tenant.id, webhook, 10) == [2]


POSTED = 120


@dataclass(frozen=True)
class Crowd:
    """Those who post to one webhook, claim from it, read its feed and sweep, all at once."""

    database: Database
    tenant_id: UUID
    webhook: UUID

    def post(self) -> None:
        for _ in range(POSTED // 4):
            emit(self.database, self.tenant_id)

    def claim(self) -> list[int | None]:
        mine: list[int | None] = []
        while not self.all_numbered():
            mine += claim(self.database, self.tenant_id, self.webhook, 3)
        return mine

    def read(self) -> list[int | None]:
        seen: list[int | None] = []
        while len(seen) < POSTED:
            with self.database.transaction(self.tenant_id) as session:
                page = catch_up.after(session, self.tenant_id, self.webhook, len(seen), limit=7)
            seen += [entry.delivery.row.sequence for entry in page]
        return seen

    def sweep(self) -> None:
        while not self.all_numbered():
            with self.database.transaction(self.tenant_id) as session:
                lanes.number_if_free(session, self.tenant_id, self.webhook)

    def all_numbered(self) -> bool:
        with self.database.transaction(self.tenant_id) as session:
            numbered = session.scalar(text("SELECT count(sequence) FROM deliveries")) or 0
        return int(numbered) == POSTED


def test_who_claims_reads_and_sweeps_at_once_leaves_no_gap(
    database: Database, tenant: FreshTenant, webhook: UUID
) -> None:
    crowd = Crowd(database, tenant.id, webhook)
    with ThreadPoolExecutor(10) as pool:
        ending = [pool.submit(crowd.post) for _ in range(4)] + [pool.submit(crowd.sweep)]
        claims = [pool.submit(crowd.claim) for _ in range(3)]
        reads = [pool.submit(crowd.read) for _ in range(2)]
        for each in ending:
            each.result(60)
        assert [each.result(60) for each in reads] == [list(range(1, POSTED + 1))] * 2
        claimed = [number for each in claims for number in each.result(60)]
    assert len(claimed) == len(set(claimed)), "no number was claimed twice"
    with database.transaction(tenant.id) as session:
        numbers = list(session.scalars(text("SELECT sequence FROM deliveries ORDER BY sequence")))
        books = accounting.of(session, tenant.id, webhook, exact=True)
    assert numbers == list(range(1, POSTED + 1))
    assert (books["accepted"], books["pending"], books["balanced"]) == (POSTED, POSTED, True)
