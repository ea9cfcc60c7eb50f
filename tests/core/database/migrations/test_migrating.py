"""A release migrates once, as any owner of the database, or says in one line why not."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.engine import make_url

from app import clock, ids, migrations
from app.core import partitions, tenants
from app.core.keys import keyring
from app.database import Database
from app.settings import Settings
from dev.stores.postgres import EmbeddedPostgres
from tests.support.secrets import MASTER_KEYS


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
        lower = partitions.week_of(old)
        bounds = ids.earliest_at(lower), ids.earliest_at(lower + partitions.WEEK)
        for parent in partitions.PARENTS:
            session.execute(
                text("SELECT make_history_partition(:parent, :lower, :upper)"),
                {"parent": parent, "lower": bounds[0], "upper": bounds[1]},
            )
        outlived = partitions.outlived(session, clock.now(), 90)
        assert len(outlived) > 0
        for each in outlived:
            partitions.drop(session, each)
        assert partitions.outlived(session, clock.now(), 90) == []
    database.close()


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
