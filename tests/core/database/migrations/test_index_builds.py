"""Indexes are built while rows are written, and again after a release that was killed."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Engine, create_engine, text

from app import migrations
from app.database import Database
from app.settings import Settings
from tests.core.database.migrations.revisions import revision_before
from tests.support.faults import LONG_ENOUGH, until


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
        before_it = revision_before("_findings_of_a_digest.py")
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
    with engine.begin() as connection:
        connection.exec_driver_sql(before)
        before_it = revision_before("_lost_and_old_jobs.py")
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
    """Say whether a statement about an index waits for a lock."""
    query = text("""
        SELECT count(*) FROM pg_stat_activity
         WHERE datname = current_database() AND wait_event_type = 'Lock' AND query ~ 'INDEX'
    """)
    with engine.connect() as connection:
        return bool(connection.scalar(query))
