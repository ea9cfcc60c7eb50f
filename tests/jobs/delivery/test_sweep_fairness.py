"""The sweep reaches every due lane, however many are due before it and stay so."""

from uuid import UUID

from sqlalchemy import text

from app.core import tenants
from app.core.delivery import sweeping
from app.database import Database
from tests.support.secrets import MASTER_KEYS


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
