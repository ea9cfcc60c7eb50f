"""A migration behind the first upgrades a database that the release before goes on using."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, text

from app import migrations
from app.core import tenants
from app.core.health import database_state
from app.database import Database
from app.settings import Settings
from tests.support.database.databases import waiting
from tests.support.faults import LONG_ENOUGH, until
from tests.support.secrets import MASTER_KEYS

MIGRATIONS = Path(migrations.__file__).parents[1] / "migrations"
SCRIPTS = ScriptDirectory(str(MIGRATIONS))
NEXT = '''"""A column, a table, and an index that is built while others write."""

from alembic import op

revision = "next"
down_revision = "{before}"
branch_labels = None
depends_on = None


def upgrade():
    op.execute("SET LOCAL lock_timeout = '2s'")
    op.execute("ALTER TABLE agents ADD COLUMN IF NOT EXISTS nickname text")
    op.execute("CREATE TABLE IF NOT EXISTS notes (tenant_id uuid PRIMARY KEY)")
    with op.get_context().autocommit_block():
        # What a run that was killed has left is no index, and keeps its name.
        op.execute("DROP INDEX CONCURRENTLY IF EXISTS findings_next")
        op.execute("CREATE INDEX CONCURRENTLY findings_next ON findings (title)")
'''
INDEX = text("SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('findings_next')")


@pytest.fixture
def next_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the migrations of a release after this one, for as long as the test runs."""
    folder = tmp_path / "migrations"
    shutil.copytree(MIGRATIONS, folder)
    (folder / "versions" / "next.py").write_text(NEXT.format(before=SCRIPTS.get_current_head()))
    monkeypatch.setattr(migrations, "_FOLDER", folder)


@pytest.mark.usefixtures("next_release")
def test_a_migration_upgrades_while_the_release_before_goes_on_writing(
    fresh_settings: Settings, fresh_database: Database
) -> None:
    owner = create_engine(fresh_settings.database_admin_url)
    writing = text("LOCK TABLE findings IN ROW EXCLUSIVE MODE")
    before, _ = tenants.create(fresh_database, MASTER_KEYS, "before")
    with ThreadPoolExecutor(1) as pool:
        with owner.begin() as one_who_takes_long:
            one_who_takes_long.execute(writing)
            upgraded = pool.submit(
                migrations.migrate,
                fresh_settings.database_admin_url,
                app_url=fresh_settings.database_url,
            )
            until(lambda: waiting(owner, "INDEX") > 0)
            with owner.begin() as another:
                another.execute(text("SET LOCAL lock_timeout = '1s'"))
                another.execute(writing)
        said = upgraded.result(timeout=LONG_ENOUGH)
    assert f"went from revision {SCRIPTS.get_current_head()} to next" in said
    assert database_state.is_current(fresh_database)
    after, _ = tenants.create(fresh_database, MASTER_KEYS, "after")
    with fresh_database.transaction(after) as session:
        session.execute(text("INSERT INTO notes VALUES (:id)"), {"id": after})
    with fresh_database.across_tenants() as session:
        assert {row.id for row in tenants.rows(session)} == {before, after}
        assert session.scalar(INDEX) is True
    owner.dispose()


@pytest.mark.usefixtures("next_release")
def test_a_release_that_fails_while_it_builds_an_index_is_run_again(
    fresh_settings: Settings,
) -> None:
    admin, url = fresh_settings.database_admin_url, fresh_settings.database_url
    owner = create_engine(admin)
    with ThreadPoolExecutor(1) as pool:
        with owner.begin() as writer:
            writer.execute(text("LOCK TABLE findings IN ROW EXCLUSIVE MODE"))
            killed = pool.submit(migrations.migrate, admin, app_url=url)
            until(lambda: waiting(owner, "INDEX") > 0)
            writer.execute(
                text("""
                SELECT pg_cancel_backend(pid) FROM pg_stat_activity
                 WHERE datname = current_database() AND query ~ '^CREATE INDEX'
                """)
            )
        with pytest.raises(migrations.MigrationError):
            killed.result(timeout=LONG_ENOUGH)
    with owner.connect() as connection:
        assert connection.scalar(INDEX) is False
    assert "to next" in migrations.migrate(admin, app_url=url)
    with owner.connect() as connection:
        assert connection.scalar(INDEX) is True
    owner.dispose()
