"""The database that a release makes: it matches the models, and its walls and keys hold."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, ProgrammingError

from app import clock, ids, migrations
from app.core import partitions, tenants
from app.core.audit import chain_identity
from app.core.health import schema
from app.core.keys import keyring
from app.core.records import bundles
from app.core.verification import daily_state
from app.database import Database, database_now
from app.dev.stores.postgres import EmbeddedPostgres
from app.errors import AuditChainBroken
from app.manage import commands
from app.models import Base
from app.settings import Settings
from tests.support.callers.api import FreshTenant, serving
from tests.support.callers.making import make_record, make_session
from tests.support.database.databases import made_database
from tests.support.database.storing import counted, kept
from tests.support.faults import LONG_ENOUGH, until
from tests.support.secrets import MASTER_KEYS, MASTER_KEYS_SETTING

ROOT = Path(__file__).resolve().parents[3]
# The two hashes by which a caller's tenant is found.
TENANT_IS_FOUND_BY = {"api_keys_digest", "share_links_digest"}
# The service's own: keys that sign for everyone, and a log that names no tenant.
WITHOUT_TENANT = (
    "alembic_version",
    "tenants",
    "signing_keys",
    "log_generations",
    "log_leaves",
    "log_tiles",
    "checkpoints",
    "checkpoint_timestamps",
    "checkpoint_cosignatures",
    "anchoring_troubles",
    "acknowledged_chains",
    "master_keys",
    "sealed_notes",
    "history_policy",
)
# Keyed hashes, which say nothing without the tenant's key.
WORDS = ("record_words", "bundle_words", "finding_words")
WITHOUT_WALL = (*WITHOUT_TENANT[2:], "alembic_version", *WORDS)


def test_the_models_have_exactly_the_columns_that_migrations_made(admin_engine: Engine) -> None:
    with admin_engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        differences = compare_metadata(context, Base.metadata)
    ours = set(Base.metadata.tables)
    about_columns = [
        difference
        for difference in differences
        if isinstance(difference, list)
        or (difference[0] in ("add_table", "add_column", "remove_column"))
        or (difference[0] == "remove_table" and difference[1].name in ours)
    ]
    assert about_columns == []


def test_every_key_and_unique_index_begins_with_the_tenant(admin_engine: Engine) -> None:
    with admin_engine.connect() as connection:
        found = connection.execute(
            text("""
            SELECT i.relname AS name, a.attname AS first FROM pg_index AS x
              JOIN pg_class AS i ON i.oid = x.indexrelid
              JOIN pg_class AS t ON t.oid = x.indrelid
              JOIN pg_attribute AS a ON a.attrelid = t.oid AND a.attnum = x.indkey[0]
             WHERE t.relnamespace = 'public'::regnamespace AND x.indisunique
               AND NOT t.relname = ANY (:others)
            """),
            {"others": list(WITHOUT_TENANT)},
        ).all()
    assert len(found) > 15
    wrong = {row.name for row in found if row.first != "tenant_id"}
    assert wrong == TENANT_IS_FOUND_BY


def test_every_table_with_a_tenant_has_its_wall(admin_engine: Engine) -> None:
    with admin_engine.connect() as connection:
        unwalled = connection.scalars(
            text("""
            SELECT relname FROM pg_class
             WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p')
               AND NOT relispartition AND NOT relname = ANY (:others)
               AND NOT (relrowsecurity AND relforcerowsecurity)
            """),
            {"others": list(WITHOUT_WALL)},
        ).all()
    assert unwalled == []


def test_a_transaction_sees_its_own_tenant_alone(
    database: Database, tenant: FreshTenant, other_tenant: FreshTenant
) -> None:
    with database.transaction(tenant.id) as session:
        assert session.scalars(text("SELECT id FROM tenants")).all() == [tenant.id]
        seen = session.scalars(text("SELECT DISTINCT tenant_id FROM audit_entries")).all()
    assert seen == [tenant.id]
    with database.across_tenants() as session:
        everyone = set(session.scalars(text("SELECT id FROM tenants")))
    assert {tenant.id, other_tenant.id} <= everyone


def test_a_transaction_cannot_write_for_another_tenant(
    database: Database, tenant: FreshTenant, other_tenant: FreshTenant
) -> None:
    insert = "INSERT INTO agents (tenant_id, id, name) VALUES (:t, gen_random_uuid(), 'x')"
    with (
        pytest.raises(ProgrammingError, match="row-level security"),
        database.transaction(tenant.id) as session,
    ):
        session.execute(text(insert), {"t": other_tenant.id})


@pytest.mark.parametrize(
    "verb", ["UPDATE audit_entries SET action = 'x'", "DELETE FROM audit_entries"]
)
def test_the_service_itself_can_neither_change_nor_delete_audit_entries(
    database: Database, tenant: FreshTenant, verb: str
) -> None:
    with (
        pytest.raises(ProgrammingError, match="permission denied"),
        database.transaction(tenant.id) as session,
    ):
        session.execute(text(verb))


def test_the_service_can_drop_no_table_but_partitions_of_its_history(
    database: Database, tenant: FreshTenant
) -> None:
    for statement in (
        "DROP TABLE findings",
        "SELECT drop_history_partition('findings', '01a1e1a7-4c00-0000-0000-000000000000')",
    ):
        with (
            pytest.raises(DBAPIError, match=r"must be owner|no history in table"),
            database.transaction(tenant.id) as session,
        ):
            session.execute(text(statement))


def test_what_runs_with_its_owners_rights_is_for_the_service_alone(
    admin_engine: Engine, settings: Settings
) -> None:
    query = text("""
        SELECT p.proname AS name, p.proconfig::text AS config,
               has_function_privilege('nobody_in_particular', p.oid, 'EXECUTE') AS anyone,
               has_function_privilege(:service, p.oid, 'EXECUTE') AS service
          FROM pg_proc AS p
         WHERE p.prosecdef AND p.pronamespace NOT IN
               ('pg_catalog'::regnamespace, 'information_schema'::regnamespace)
         ORDER BY 1
    """)
    with admin_engine.connect() as connection:
        connection.execute(text("CREATE ROLE nobody_in_particular"))
        service = make_url(settings.database_url).username
        found = connection.execute(query, {"service": service}).all()
        connection.rollback()
    assert [row.name for row in found] == ["drop_history_partition", "make_history_partition"]
    assert all(row.service and not row.anyone for row in found)
    assert all("search_path=" in row.config for row in found)


def test_a_database_newer_than_the_code_is_refused_in_one_line(
    fresh_database: Database, postgres: EmbeddedPostgres, settings: Settings
) -> None:
    url = str(fresh_database.engine.url.database)
    admin = settings.database_admin_url.rpartition("/")[0] + "/" + url
    engine = create_engine(admin)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    engine.dispose()
    with pytest.raises(migrations.MigrationError, match="9999, newer than this release") as refusal:
        migrations.migrate(admin, app_url=settings.database_url)
    assert "\n" not in str(refusal.value)


def test_two_releases_at_once_migrate_once(settings: Settings, admin_engine: Engine) -> None:
    name = "two_releases"
    with admin_engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)"))
        connection.execute(text(f"CREATE DATABASE {name}"))
    admin = settings.database_admin_url.rpartition("/")[0] + f"/{name}"
    with ThreadPoolExecutor(2) as pool:
        said = [
            future.result()
            for future in [
                pool.submit(migrations.migrate, admin, app_url=settings.database_url)
                for _ in range(2)
            ]
        ]
    assert sorted("went from revision none" in line for line in said) == [False, True]


@pytest.mark.parametrize(
    "before",
    [
        "DROP INDEX findings_digest",
        # An earlier run was killed, and left an index that is none.
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'findings_digest'::regclass",
    ],
)
def test_findings_are_written_while_their_index_is_built(
    fresh_database: Database, settings: Settings, before: str
) -> None:
    name = fresh_database.engine.url.database
    admin = settings.database_admin_url.rpartition("/")[0] + f"/{name}"
    engine = create_engine(admin)
    writing = text("LOCK TABLE findings IN ROW EXCLUSIVE MODE")
    index = text("SELECT indisvalid FROM pg_index WHERE indexrelid = 'findings_digest'::regclass")
    with engine.begin() as connection:
        connection.exec_driver_sql(before)
        # A migration behind this one makes it again.
        connection.exec_driver_sql("DROP TABLE master_keys")
        (before_it,) = (
            script.down_revision
            for script in ScriptDirectory(str(ROOT / "migrations")).walk_revisions()
            if script.path.endswith("_findings_of_a_digest.py")
        )
        connection.execute(text("UPDATE alembic_version SET version_num = :v"), {"v": before_it})
    with ThreadPoolExecutor(1) as pool:
        with engine.begin() as one_who_takes_long:
            one_who_takes_long.execute(writing)
            migrated = pool.submit(migrations.migrate, admin, app_url=settings.database_url)
            until(lambda: _waits(engine))
            with engine.begin() as another:
                another.execute(text("SET LOCAL lock_timeout = '1s'"))
                another.execute(writing)
        assert f"from revision {before_it} to" in migrated.result(timeout=LONG_ENOUGH)
    with engine.connect() as connection:
        assert connection.scalar(index) is True
    engine.dispose()


def test_a_change_of_a_table_waits_two_seconds_at_most_for_its_lock() -> None:
    """Everybody else who wants the table queues behind it, and a backup holds each for hours."""
    for script in ScriptDirectory(str(ROOT / "migrations")).walk_revisions():
        said = Path(script.path).read_text("utf-8")
        if script.revision > "0017" and "ALTER TABLE" in said:
            assert "SET LOCAL lock_timeout = '2s'" in said, script.path


def test_the_revisions_that_this_release_goes_beyond_are_those_before_its_head() -> None:
    known = ScriptDirectory(str(ROOT / "migrations"))
    every = {script.revision for script in known.walk_revisions()}
    assert schema.superseded() == every - {known.get_current_head()}


@pytest.mark.parametrize(
    "before",
    [
        "DROP INDEX jobs_of_kind, jobs_finished",
        # An earlier run was killed, and left indexes that are none.
        """
        UPDATE pg_index SET indisvalid = false
         WHERE indexrelid IN ('jobs_of_kind'::regclass, 'jobs_finished'::regclass)
        """,
    ],
)
def test_the_indexes_of_jobs_are_built_by_the_next_run_of_a_release_that_was_killed(
    fresh_database: Database, settings: Settings, before: str
) -> None:
    name = fresh_database.engine.url.database
    admin = settings.database_admin_url.rpartition("/")[0] + f"/{name}"
    engine = create_engine(admin)
    (before_it,) = (
        script.down_revision
        for script in ScriptDirectory(str(ROOT / "migrations")).walk_revisions()
        if script.path.endswith("_lost_and_old_jobs.py")
    )
    with engine.begin() as connection:
        connection.exec_driver_sql(before)
        connection.execute(text("UPDATE alembic_version SET version_num = :v"), {"v": before_it})
    migrations.migrate(admin, app_url=settings.database_url)
    with engine.connect() as connection:
        valid = connection.scalars(
            text("""
            SELECT indisvalid FROM pg_index
             WHERE indexrelid IN ('jobs_of_kind'::regclass, 'jobs_finished'::regclass)
            """)
        ).all()
    assert valid == [True, True]
    engine.dispose()


def _waits(engine: Engine) -> bool:
    """Say whether a statement about an index waits for somebody."""
    query = text("""
        SELECT count(*) FROM pg_stat_activity
         WHERE datname = current_database() AND wait_event_type = 'Lock' AND query ~ 'INDEX'
    """)
    with engine.connect() as connection:
        return bool(connection.scalar(query))


def test_an_unreachable_database_is_said_in_one_line() -> None:
    url = "postgresql+psycopg://nobody@127.0.0.1:1/none"
    with pytest.raises(migrations.MigrationError, match="does not answer") as refusal:
        migrations.migrate(url, app_url=url)
    assert "\n" not in str(refusal.value)


def test_seeding_twice_makes_one_tenant(fresh_database: Database) -> None:
    key = "svc_chosen-by-the-operator"
    assert tenants.seed(fresh_database, MASTER_KEYS, key) is True
    assert tenants.seed(fresh_database, MASTER_KEYS, key) is False
    with fresh_database.across_tenants() as session:
        assert [tenant.name for tenant in tenants.rows(session)] == ["default"]


@pytest.fixture
def owned(settings: Settings, admin_engine: Engine) -> Iterator[str]:
    """Return the address of an empty database, and of its owner, who is no superuser."""
    owner = admin_engine.execution_options(isolation_level="AUTOCOMMIT")
    with owner.connect() as connection:
        connection.execute(text("CREATE ROLE one_role LOGIN PASSWORD 'one'"))
        connection.execute(text("CREATE DATABASE one_role OWNER one_role"))
    url = make_url(settings.database_admin_url)
    own = url.set(username="one_role", password="one", database="one_role")
    yield own.render_as_string(hide_password=False)
    with owner.connect() as connection:
        connection.execute(text("DROP DATABASE one_role WITH (FORCE)"))
        connection.execute(text("DROP ROLE one_role"))


def test_one_role_that_is_no_superuser_can_migrate_and_run_the_service(owned: str) -> None:
    migrations.migrate(owned, app_url=owned)
    database = Database(owned, application="tests")
    tenant_id, key = tenants.create(database, MASTER_KEYS, "on a platform")
    other_id, _ = tenants.create(database, MASTER_KEYS, "a stranger")
    assert keyring.authenticate(database, key, "request").tenant_id == tenant_id
    with database.transaction(tenant_id) as session:
        assert session.scalars(text("SELECT id FROM tenants")).all() == [tenant_id]
        assert other_id not in session.scalars(text("SELECT tenant_id FROM api_keys")).all()
    old = clock.now() - timedelta(days=200)
    with database.across_tenants() as session:
        assert partitions.make_partitions(session.connection(), old) > 0
        outlived = partitions.outlived(session, clock.now(), 90)
        assert len(outlived) > 0
        for each in outlived:
            partitions.drop(session, each)
        assert partitions.outlived(session, clock.now(), 90) == []
    database.close()


def test_deliveries_that_were_open_before_they_were_counted_are_counted(owned: str) -> None:
    # The walls bind this role: a backfill that forgot them would see no rows.
    now = ids.new()
    engine = create_engine(owned)
    with engine.begin() as connection:
        _upgrade(connection, "0001")
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


def test_tenants_made_before_chains_had_seals_get_one_at_the_release(owned: str) -> None:
    # The walls bind this role: who forgot them would take the anchored chain's name, too.
    engine = create_engine(owned)
    before, anchored = ids.new(), ids.new()
    with engine.begin() as connection:
        _upgrade(connection, "0012")
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
    settings: Settings, admin_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with admin_engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("DROP DATABASE IF EXISTS unnoted WITH (FORCE)"))
        connection.execute(text("CREATE DATABASE unnoted"))
    admin = make_url(settings.database_admin_url).set(database="unnoted")
    url = make_url(settings.database_url).set(database="unnoted")
    engine = create_engine(admin)
    of_old = ids.new(clock.now() - timedelta(days=400))
    with engine.connect() as connection:
        _upgrade(connection, "0017")
    with engine.begin() as connection:
        connection.execute(
            text("INSERT INTO tenants (id, name) VALUES (:id, 'of old')"), {"id": of_old}
        )
    environ = {
        "DATABASE_URL": url.render_as_string(hide_password=False),
        "DATABASE_ADMIN_URL": admin.render_as_string(hide_password=False),
        "MASTER_KEYS": MASTER_KEYS_SETTING,
        "BASE_URL": settings.base_url,
    }
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    database = Database(environ["DATABASE_URL"], application="tests")

    assert commands.main(["migrate"]) == 0
    with database.across_tenants() as session:
        since = daily_state.unverified_since(session, MASTER_KEYS)
        assert since is not None
        assert database_now(session) - since < daily_state.MISSED
        assert daily_state.standing(session, MASTER_KEYS) is None
    assert commands.main(["migrate"]) == 0
    with database.across_tenants() as session:
        assert daily_state.unverified_since(session, MASTER_KEYS) == since
    with engine.begin() as connection:
        assert connection.execute(text("DELETE FROM sealed_notes")).rowcount == 1
    assert commands.main(["migrate"]) == 0
    with database.across_tenants() as session:
        assert daily_state.unverified_since(session, MASTER_KEYS) == ids.made_at(of_old)
        assert daily_state.standing(session, MASTER_KEYS) is not None
    database.close()
    engine.dispose()


def test_what_was_stored_before_it_was_counted_is_counted_while_requests_go_on(
    settings: Settings, admin_engine: Engine
) -> None:
    with made_database(settings, admin_engine) as own, serving(own) as api:
        engine = create_engine(own.database_admin_url)
        database = Database(own.database_url, application="tests")
        tenant_id, key = tenants.create(database, MASTER_KEYS, "a tenant")
        session_id = make_session(api(key))["id"]
        made = [make_record(api(key), session_id) for _ in range(4)]
        with engine.begin() as connection:
            connection.execute(text("DROP TABLE stored_records"))
            connection.execute(text("DROP FUNCTION count_stored_records() CASCADE"))
            connection.execute(text("UPDATE alembic_version SET version_num = '0027'"))
        with engine.connect() as connection:
            _upgrade(connection, "0028")
            role = make_url(own.database_url).username
            connection.execute(text(f"GRANT ALL ON stored_records TO {role}"))
            connection.commit()
        # Before it has been looked what was there, some of that goes, and more comes.
        with database.transaction(tenant_id) as session:
            old = ids.parse("rec", made[0]["id"])
            assert old is not None
            assert bundles.delete(session, tenant_id, [old]) == 1
        make_record(api(key), session_id)
        assert counted(database, tenant_id) != kept(database, tenant_id)

        migrations.migrate(own.database_admin_url, app_url=own.database_url)
        assert counted(database, tenant_id) == kept(database, tenant_id)
        assert counted(database, tenant_id).records == 5
        with engine.connect() as connection:
            connection.execute(text("UPDATE alembic_version SET version_num = '0027'"))
            connection.commit()
        migrations.migrate(own.database_admin_url, app_url=own.database_url)
        assert counted(database, tenant_id) == kept(database, tenant_id)
        database.close()
        engine.dispose()


def _upgrade(connection: Connection, revision: str) -> None:
    config = Config()
    config.set_main_option("script_location", str(ROOT / "migrations"))
    config.attributes["connection"] = connection
    command.upgrade(config, revision)


def test_what_the_database_refuses_is_said_in_one_line(
    settings: Settings, admin_engine: Engine
) -> None:
    with admin_engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("DROP ROLE IF EXISTS nobody_much"))
        connection.execute(text("CREATE ROLE nobody_much LOGIN PASSWORD 'one'"))
    url = make_url(settings.database_admin_url).set(
        username="nobody_much", password="one", database="postgres"
    )
    as_text = url.render_as_string(hide_password=False)
    with pytest.raises(migrations.MigrationError, match="the database refused: ") as refusal:
        migrations.migrate(as_text, app_url=as_text)
    assert "\n" not in str(refusal.value)
