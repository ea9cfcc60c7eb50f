"""An empty database, not migrated, of a role that is no superuser."""

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.engine import make_url

from app.settings import Settings


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
