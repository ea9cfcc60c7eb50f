"""The revisions of the database, and how a test comes to an older one."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

MIGRATIONS = Path(__file__).resolve().parents[4] / "migrations"
SCRIPTS = ScriptDirectory(str(MIGRATIONS))


def revision_before(script_name: str) -> str:
    """Return the revision before the one whose script's name ends like this."""
    scripts = SCRIPTS.walk_revisions()
    (found,) = (each.down_revision for each in scripts if each.path.endswith(script_name))
    return str(found)


def upgrade(connection: Connection, revision: str) -> None:
    """Migrate up to a revision, on this connection."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["connection"] = connection
    command.upgrade(config, revision)
