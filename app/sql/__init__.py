"""The current text of each function of the database, one file each.

Migrations put them into the database; tests/core/database/test_sql_functions.py compares the files
with a migrated one.
"""

from pathlib import Path

_FOLDER = Path(__file__).parent


def names() -> list[str]:
    """Return the functions' names, in a fixed order."""
    return sorted(path.stem for path in _FOLDER.glob("*.sql"))


def text(name: str) -> str:
    """Return the statement that creates or replaces a function."""
    return (_FOLDER / f"{name}.sql").read_text("utf-8")
