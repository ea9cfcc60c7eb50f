"""The counters of the whole stack, added up in PostgreSQL.

Each process counts in memory (`app/lib/metric_registry.py`) and adds what is new to the table
`counters` every five seconds, in one statement, from a thread of its own. So a scrape of any web
process shows every process's figures, and none goes back when a process dies.
"""

import threading

from sqlalchemy.orm import Session

from app.database import Database, cursor
from app.lib import canonical_json
from app.lib.metric_registry import Figure, Tally
from app.lib.repeater import Repeater
from app.models import NO_TENANT

EVERY_SECONDS = 5.0
# At the process's end, for the last write.
LAST_SECONDS = 1.0

_ADD = """
INSERT INTO counters AS c (tenant_id, name, labels, value)
SELECT %s::uuid, new.name, new.labels, new.value
  FROM unnest(%s::text[], %s::text[], %s::float8[]) AS new (name, labels, value)
ON CONFLICT (tenant_id, name, labels) DO UPDATE SET value = c.value + excluded.value
"""


def add(session: Session, growth: dict[Figure, float]) -> None:
    """Add to the stack's figures, in a transaction of `NO_TENANT`."""
    # In one order everywhere: concurrent writers wait for each other and do not deadlock.
    rows = sorted((name, _text(labels), float(value)) for (name, labels), value in growth.items())
    columns = [list(column) for column in zip(*rows, strict=True)]
    cursor(session).execute(_ADD, (NO_TENANT, *columns))


def read(session: Session) -> list[tuple[str, str, float]]:
    """Return every figure as (name, labels' values as a JSON array, value), of `NO_TENANT`."""
    found = cursor(session).execute(
        "SELECT name, labels, value FROM counters ORDER BY name, labels"
    )
    return [(name, labels, value) for name, labels, value in found.fetchall()]


def writer(database: Database, tally: Tally) -> Repeater:
    """Return what writes a process's counters, which has one; begin it again after a fork.

    Counts that could not be written are kept for the next time.
    """
    written: dict[Figure, float] = {}
    writing = threading.Lock()

    def write() -> None:
        with writing:
            now = tally.figures()
            growth = {
                figure: value - written.get(figure, 0)
                for figure, value in now.items()
                if value != written.get(figure, 0)
            }
            if growth:
                with database.transaction(NO_TENANT) as session:
                    add(session, growth)
                written.update(now)

    failed = "counters_not_written"
    return Repeater("counters", write, EVERY_SECONDS, failed=failed, at_end=LAST_SECONDS)


def _text(labels: tuple[str, ...]) -> str:
    return canonical_json.dumps(list(labels)).decode()
