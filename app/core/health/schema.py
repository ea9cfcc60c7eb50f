"""Check that the database has this release's schema, without importing the migrations."""

import re
from functools import cache
from pathlib import Path

import psycopg

from app.database import Database

_FOLDER = Path(__file__).resolve().parents[3] / "migrations" / "versions"
_BEFORE = re.compile(r'^down_revision = "(\w+)"$', re.MULTILINE)


def is_current(database: Database) -> bool:
    """Say whether the database has every migration of this release (it may have more).

    One statement. Raises `Unavailable`.
    """
    try:
        row = database.ask("SELECT version_num FROM alembic_version", ())
    except psycopg.errors.UndefinedTable:
        return False
    return row is not None and row[0] not in superseded()


@cache
def superseded() -> frozenset[str]:
    """Return the revisions that a later migration of this release supersedes."""
    texts = (file.read_text("utf-8") for file in _FOLDER.glob("*.py"))
    return frozenset(revision for text in texts for revision in _BEFORE.findall(text))
