"""The first release: the functions of `app/sql`, then the tables of `0001_first.sql`.

That text never changes. Functions are taken as their files say today: a later migration installs
from the same files again, and with bodies unchecked a function may name a column that only a later
migration adds.
"""

from pathlib import Path

from alembic import op

from app import sql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create everything, for a new database."""
    op.execute("SET LOCAL check_function_bodies = off")
    for name in sql.names():
        op.execute(sql.text(name))
    op.execute(Path(__file__).with_suffix(".sql").read_text("utf-8"))
