"""The sweep finds whatever is due and was not rung, and reaches every due lane in its order."""

from uuid import UUID

import pytest
from sqlalchemy import text

from app import ids
from app.core import tenants
from app.core.delivery import sweeping
from app.core.delivery.lanes import lanes
from app.core.jobs import job_queue, leases
from app.core.log.sequencer import Sequencer
from app.database import Database
from app.ledger import leaves
from app.ledger.merkle import leaf_hash
from app.settings import Settings
from jobs.actors import sweep
from tests.support.secrets import MASTER_KEYS
from tests.support.workers.outbox import Outbox


class Swept(Outbox):
    """A tenant with webhooks, alone in a database, and the sweep of that database."""

    def wake(self) -> set[UUID]:
        with self.database.across_tenants() as session:
            return {webhook for _, webhook in sweeping.wake(session)[0]}

    def sweep_number(self, *webhooks: UUID) -> None:
        """Have the sweep number what these webhooks' workers have not reached."""
        sweep.number(self.database, [(self.tenant_id, webhook) for webhook in webhooks])

    def numbers(self, webhook: UUID) -> list[int]:
        with self.database.transaction(self.tenant_id) as session:
            query = text(
                "SELECT sequence FROM deliveries WHERE webhook_id = :webhook"
                " AND sequence IS NOT NULL ORDER BY id"
            )
            return list(session.scalars(query, {"webhook": webhook}))


@pytest.fixture(autouse=True)
def time_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the sweep number as long as it takes on a machine that is busy with other things."""
    monkeypatch.setattr(sweep, "NUMBERING_SECONDS", 60.0)


@pytest.fixture
def place(fresh_database: Database, settings: Settings) -> Swept:
    return Swept.of_new_tenant(fresh_database, settings)


def test_rows_whose_lane_was_not_rung_are_found(place: Swept) -> None:
    with_rows = {place.webhook() for _ in range(3)}
    place.emit()
    place.webhook()
    assert place.swept() == with_rows


def test_what_was_just_rung_is_not_rung_again(place: Swept) -> None:
    webhook = place.webhook()
    place.emit()
    assert place.swept() == {webhook}
    assert place.swept() == set()
    place.run("UPDATE lanes SET ring_at = NULL")
    assert place.swept() == {webhook}


def test_numbered_rows_are_found_by_the_lane_s_own_time(place: Swept) -> None:
    webhook = place.webhook()
    place.emit()
    place.number(webhook)
    with place.database.transaction(place.tenant_id) as session:
        assert lanes.reschedule(session, place.tenant_id, webhook)
    assert place.swept() == set(), "behind the lanes that have waited longer"
    place.run("UPDATE lanes SET ring_at = ring_at - interval '2 s'")
    assert place.swept() == {webhook}


def test_a_lane_waits_for_its_next_retry(place: Swept) -> None:
    webhook = place.webhook()
    place.emit()
    place.run("UPDATE open_deliveries SET next_attempt_at = clock_timestamp() + interval '1 hour'")
    place.number(webhook)
    with place.database.transaction(place.tenant_id) as session:
        assert not lanes.reschedule(session, place.tenant_id, webhook)
    assert place.swept() == set()


def test_a_paused_lane_is_rung_when_its_pause_ends(place: Swept) -> None:
    webhook = place.webhook()
    place.run("UPDATE lanes SET paused_until = clock_timestamp() + interval '1 hour'")
    place.emit()
    assert place.swept() == set()
    place.run("UPDATE lanes SET paused_until = clock_timestamp(), due_at = clock_timestamp()")
    assert place.swept() == {webhook}


def test_due_jobs_are_found_and_waiting_or_leased_ones_are_not(place: Swept) -> None:
    with place.database.transaction(place.tenant_id) as session:
        due, leased, later = (
            job_queue.enqueue(session, place.tenant_id, kind="test", args={}).id for _ in range(3)
        )
        leases.claim(session, place.tenant_id, leased)
    place.run(
        "UPDATE jobs SET run_at = clock_timestamp() + interval '1 hour' WHERE id = :id", id=later
    )
    with place.database.across_tenants() as session:
        assert [job for _, job in sweeping.due(session)["run_job"]] == [due]
    with place.database.across_tenants() as session:
        assert sweeping.due(session)["run_job"] == []


def test_rows_that_have_waited_long_without_a_number_are_told_of(place: Swept) -> None:
    first, second = place.webhook(), place.webhook()
    place.emit()
    assert place.wake() == set()
    place.run(
        "UPDATE open_deliveries SET next_attempt_at = next_attempt_at - :long"
        " WHERE webhook_id = :first",
        long=sweeping.UNNUMBERED_FOR,
        first=first,
    )
    assert place.wake() == {first}
    place.sweep_number(first, second)
    assert place.wake() == set()


def test_the_log_is_rung_only_while_something_waits_for_it(place: Swept) -> None:
    sequencer = Sequencer(place.database, place.settings.master_keys, "log.test", None)

    def rung() -> bool:
        with place.database.across_tenants() as session:
            return "integrate" in sweeping.due(session, sweep.OTHERS)

    assert rung(), "a log that has not begun waits for it"
    sequencer.run()
    assert not rung()
    leaf = leaves.record(bytes(32))
    place.run(
        "INSERT INTO log_leaves (id, leaf_hash, data) VALUES (:id, :hash, :data)",
        id=ids.new(),
        hash=leaf_hash(leaf),
        data=leaf,
    )
    assert rung()
    sequencer.run()
    assert not rung()


def test_lanes_that_stay_due_do_not_keep_the_others_from_being_rung(
    fresh_database: Database,
) -> None:
    every = _due_lanes(fresh_database, 2 * sweeping.AT_ONCE)
    rung: set[UUID] = set()
    for _ in range(2):
        with fresh_database.across_tenants() as session:
            rung |= {webhook for _, webhook in sweeping.due(session)["deliver"]}
            # Nobody had room for them, and the two seconds pass.
            session.execute(text("UPDATE lanes SET ring_at = ring_at - interval '3 s'"))
    assert rung == every


def test_lanes_are_rung_in_the_order_in_which_they_wait_round_after_round(
    fresh_database: Database,
) -> None:
    _due_lanes(fresh_database, 300)
    for moved_on in (0, 40, 0):
        with fresh_database.across_tenants() as session:
            # Some have had a turn, and go behind all that were rung before.
            session.execute(
                text(
                    "UPDATE lanes SET ring_at = clock_timestamp() WHERE webhook_id IN"
                    " (SELECT webhook_id FROM lanes ORDER BY coalesce(ring_at, due_at) LIMIT :n)"
                ),
                {"n": moved_on},
            )
            session.execute(text("UPDATE lanes SET ring_at = ring_at - interval '3 s'"))
            waiting = text("SELECT webhook_id FROM lanes ORDER BY coalesce(ring_at, due_at)")
            order = list(session.scalars(waiting))
            assert [webhook for _, webhook in sweeping.due(session)["deliver"]] == order
            assert list(session.scalars(waiting)) == order


def _due_lanes(database: Database, count: int) -> set[UUID]:
    """Make lanes that have been due for minutes, each a second longer than the next."""
    tenant_id, _ = tenants.create(database, MASTER_KEYS, "many lanes")
    with database.transaction(tenant_id) as session:
        session.execute(
            text(
                "INSERT INTO webhooks (tenant_id, id, url, max_in_flight, status, sealed_secrets,"
                " sealed_target)"
                " SELECT :t, id_beside(:t), 'https://x.example/', 1, 'enabled', '', ''"
                " FROM generate_series(1, :n)"
            ),
            {"t": tenant_id, "n": count},
        )
        session.execute(
            text(
                "INSERT INTO lanes (tenant_id, webhook_id, due_at) SELECT tenant_id, id,"
                " clock_timestamp() - (60 + row_number() OVER ()) * interval '1 s' FROM webhooks"
            )
        )
        return set(session.scalars(text("SELECT id FROM webhooks")))
