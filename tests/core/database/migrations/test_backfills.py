"""Migrations count, seal and date what was stored before them."""

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from uuid import UUID

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.engine import make_url

from app import clock, ids, migrations
from app.core import partitions, tenants
from app.core.audit import chain_identity
from app.core.records import bundles
from app.core.verification import daily_state
from app.database import Database, database_now
from app.errors import AuditChainBroken
from app.settings import Settings
from tests.core.database.migrations.revisions import upgrade
from tests.support.callers.api import serving
from tests.support.callers.making import make_record, make_session
from tests.support.database.databases import made_database
from tests.support.database.storing import counted, kept
from tests.support.secrets import MASTER_KEYS


def test_deliveries_that_were_open_before_they_were_counted_are_counted(owned: str) -> None:
    # The walls bind this role: a backfill that forgot them would see no rows.
    now = ids.new()
    engine = create_engine(owned)
    with engine.begin() as connection:
        upgrade(connection, "0001")
        partitions.make_partitions(connection, clock.now())
        connection.execute(text("SET LOCAL app.every_tenant = 'on'"))
        for statement in _OPEN_AND_DONE:
            connection.execute(text(statement), {"now": now, "other": ids.new()})
    engine.dispose()

    migrations.migrate(owned, app_url=owned)

    database = Database(owned, application="tests")
    counts = text("SELECT events_open, replays_open, tests_open FROM lanes ORDER BY webhook_id")
    with database.across_tenants() as session:
        assert session.execute(counts).all() == [(2, 1, 1), (0, 0, 0)]
        session.execute(text("DELETE FROM deliveries WHERE kind <> 'event'"))
        assert session.execute(counts).all() == [(2, 0, 0), (0, 0, 0)]
    database.close()


_OPEN_AND_DONE = (
    "INSERT INTO tenants (id, name) VALUES (:now, 'before')",
    """
    INSERT INTO webhooks (tenant_id, id, url, max_in_flight, status, sealed_secrets)
    SELECT :now, id, '', 1, 'enabled', '' FROM (VALUES (CAST(:now AS uuid)), (:other)) AS w (id)
    """,
    "INSERT INTO lanes (tenant_id, webhook_id) SELECT tenant_id, id FROM webhooks",
    """
    INSERT INTO deliveries (tenant_id, id, webhook_id, event_id, event_type, kind, priority,
                            sequence, status, next_attempt_at, finished_at)
    SELECT :now, id_beside(:now), :now, :now, 'x', row.kind, 1, row.sequence, row.status,
           CASE WHEN row.status = 'pending' THEN clock_timestamp() END,
           CASE WHEN row.status <> 'pending' THEN clock_timestamp() END
      FROM (VALUES ('event', 1, 'pending'), ('event', 2, 'pending'), ('event', 3, 'failed'),
                   ('event', NULL, 'pending'), ('replay', 1, 'pending'),
                   ('replay', 1, 'succeeded'), ('test', NULL, 'pending'))
           AS row (kind, sequence, status)
    """,
)


def test_what_replays_had_delivered_before_it_was_counted_is_counted(owned: str) -> None:
    now, failed = ids.new(), ids.new()
    engine = create_engine(owned)
    with engine.begin() as connection:
        upgrade(connection, "0001")
        partitions.make_partitions(connection, clock.now())
        connection.execute(text("SET LOCAL app.every_tenant = 'on'"))
        for statement in _REPLAYED:
            connection.execute(text(statement), {"now": now, "failed": failed})
    engine.dispose()

    migrations.migrate(owned, app_url=owned)
    migrations.migrate(owned, app_url=owned)

    database = Database(owned, application="tests")
    counts = text("SELECT failed_arrived, cancelled_arrived FROM lanes")
    with database.across_tenants() as session:
        assert session.execute(counts).all() == [(1, 1)]
    database.close()


_REPLAYED = (
    "INSERT INTO tenants (id, name) VALUES (:now, 'before')",
    """
    INSERT INTO webhooks (tenant_id, id, url, max_in_flight, status, sealed_secrets)
    VALUES (:now, :now, '', 1, 'enabled', '')
    """,
    "INSERT INTO lanes (tenant_id, webhook_id, replays_accepted) VALUES (:now, :now, 4)",
    """
    INSERT INTO deliveries (tenant_id, id, webhook_id, event_id, event_type, kind, priority,
                            sequence, status, finished_at)
    SELECT :now, id_beside(:now), :now,
           CASE row.event WHEN 1 THEN CAST(:now AS uuid) ELSE CAST(:failed AS uuid) END, 'x',
           row.kind, 1, row.event, row.status, clock_timestamp()
      FROM (VALUES ('event', 1, 'cancelled'), ('event', 2, 'failed'), ('replay', 1, 'succeeded'),
                   ('replay', 1, 'succeeded'), ('replay', 2, 'failed'), ('replay', 2, 'succeeded'))
           AS row (kind, event, status)
    """,
)


def test_tenants_made_before_chains_had_seals_get_one_at_the_release(owned: str) -> None:
    # The walls bind this role: who forgot them would take the anchored chain's name, too.
    engine = create_engine(owned)
    before, anchored = ids.new(), ids.new()
    with engine.begin() as connection:
        upgrade(connection, "0012")
        connection.execute(text("SET LOCAL app.every_tenant = 'on'"))
        connection.execute(
            text("INSERT INTO tenants (id, name) VALUES (:one, 'before'), (:two, 'anchored')"),
            {"one": before, "two": anchored},
        )
        connection.execute(
            text("INSERT INTO audit_anchors VALUES (:two, 1, :digest, now(), :digest)"),
            {"two": anchored, "digest": bytes(32)},
        )
    engine.dispose()

    migrations.migrate(owned, app_url=owned)
    database = Database(owned, application="tests")
    assert chain_identity.complete(database, MASTER_KEYS) == 1
    with database.across_tenants() as session:
        assert len(chain_identity.chain_name(session, MASTER_KEYS, before)) == 32
        with pytest.raises(AuditChainBroken):
            chain_identity.chain_name(session, MASTER_KEYS, anchored)
    database.close()


def test_the_release_that_brings_notes_counts_from_itself_and_no_later_one(
    settings: Settings, admin_engine: Engine, manage: Callable[..., tuple[int, str]]
) -> None:
    of_old = ids.new(clock.now() - timedelta(days=400))
    admin, url = unnoted(settings, admin_engine, of_old)
    migrate = partial(manage, "migrate", DATABASE_URL=url, DATABASE_ADMIN_URL=admin)
    database, engine = Database(url, application="tests"), create_engine(admin)

    assert migrate()[0] == 0
    with database.across_tenants() as session:
        since = daily_state.unverified_since(session, MASTER_KEYS)
        assert since is not None
        assert database_now(session) - since < daily_state.MISSED
    assert migrate()[0] == 0
    with database.across_tenants() as session:
        assert daily_state.unverified_since(session, MASTER_KEYS) == since
    with engine.begin() as connection:
        assert connection.execute(text("DELETE FROM sealed_notes")).rowcount == 1
    assert migrate()[0] == 0
    with database.across_tenants() as session:
        assert daily_state.unverified_since(session, MASTER_KEYS) == ids.made_at(of_old)
    database.close()
    engine.dispose()


def unnoted(settings: Settings, admin_engine: Engine, tenant_id: UUID) -> tuple[str, str]:
    """Make a database without notes, with this tenant; return its owner's URL and the service's."""
    with admin_engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("DROP DATABASE IF EXISTS unnoted WITH (FORCE)"))
        connection.execute(text("CREATE DATABASE unnoted"))
    admin, url = (
        make_url(each).set(database="unnoted").render_as_string(hide_password=False)
        for each in (settings.database_admin_url, settings.database_url)
    )
    engine = create_engine(admin)
    with engine.connect() as connection:
        upgrade(connection, "0017")
    with engine.begin() as connection:
        connection.execute(
            text("INSERT INTO tenants (id, name) VALUES (:id, 'of old')"), {"id": tenant_id}
        )
    engine.dispose()
    return admin, url


def test_what_was_stored_before_it_was_counted_is_counted_while_requests_go_on(
    settings: Settings, admin_engine: Engine
) -> None:
    with made_database(settings, admin_engine) as own, serving(own) as api:
        admin, url = own.database_admin_url, own.database_url
        engine, database = create_engine(admin), Database(url, application="tests")
        tenant_id, key = tenants.create(database, MASTER_KEYS, "a tenant")
        session_id = make_session(api(key))["id"]
        made = [make_record(api(key), session_id) for _ in range(4)]
        with engine.begin() as connection:
            connection.execute(text("DROP TABLE stored_records"))
            connection.execute(text("DROP FUNCTION count_stored_records() CASCADE"))
            connection.execute(text("UPDATE alembic_version SET version_num = '0027'"))
        with engine.connect() as connection:
            upgrade(connection, "0028")
            role = make_url(url).username
            connection.execute(text(f"GRANT ALL ON stored_records TO {role}"))
            connection.commit()
        # Before it has been looked what was there, some of that goes, and more comes.
        with database.transaction(tenant_id) as session:
            old = ids.parse("rec", made[0]["id"])
            assert old is not None
            assert bundles.delete(session, tenant_id, [old]) == 1
        make_record(api(key), session_id)
        assert counted(database, tenant_id) != kept(database, tenant_id)

        migrations.migrate(admin, app_url=url)
        assert counted(database, tenant_id) == kept(database, tenant_id)
        assert counted(database, tenant_id).records == 5
        with engine.connect() as connection:
            connection.execute(text("UPDATE alembic_version SET version_num = '0027'"))
            connection.commit()
        migrations.migrate(admin, app_url=url)
        assert counted(database, tenant_id) == kept(database, tenant_id)
        database.close()
        engine.dispose()
