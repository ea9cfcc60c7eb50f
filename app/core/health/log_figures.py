"""Figures of the log and of the anchoring of audit chains, computed from stored data.

They need no worker: after a restore they show at once how far behind the database is.
"""

from dataclasses import dataclass

from psycopg.rows import scalar_row
from sqlalchemy.orm import Session

from app.core.anchoring import monitor
from app.core.anchoring.evidence import Voucher
from app.database import cursor, database_now

# The count of waiting leaves stops here.
MOST_COUNTED = 100_000


@dataclass(frozen=True)
class LogFigures:
    """The log at one moment; ages are seconds.

    `trouble` is the slug of the problem that halted it. `head_age` is None before the first
    checkpoint. `unanchored` has, for each voucher, the age of the oldest audit entry (for the log)
    or checkpoint (for the others) that it does not cover, 0 for none.
    """

    trouble: str | None
    size: int
    waiting: int
    oldest_waiting: float
    head_age: float | None
    unanchored: dict[Voucher, float]


# Each ORDER BY matches a small index only, as in `generations`.
_READ = """
WITH present AS MATERIALIZED (
    SELECT clock_timestamp() AS now
), log AS MATERIALIZED (
    SELECT generation, trouble FROM log_generations ORDER BY generation DESC LIMIT 1
), head AS (
    SELECT size, published_at FROM checkpoints
     WHERE generation = (SELECT generation FROM log) AND note IS NOT NULL
     ORDER BY size DESC LIMIT 1
)
SELECT (SELECT trouble FROM log),
       coalesce((SELECT size FROM head), 0),
       (SELECT count(*) FROM (SELECT id FROM log_leaves WHERE leaf_index IS NULL
                               ORDER BY id LIMIT %(most)s) AS added)
       + (SELECT count(*) FROM (SELECT leaf_index FROM log_leaves
                                 WHERE generation < (SELECT generation FROM log)
                                   AND leaf_index IS NOT NULL
                                 ORDER BY generation, leaf_index LIMIT %(most)s) AS taken_over),
       coalesce((SELECT extract(epoch FROM (SELECT now FROM present) - uuid_made_at(id))::float8
                   FROM log_leaves WHERE leaf_index IS NULL ORDER BY id LIMIT 1), 0),
       (SELECT extract(epoch FROM (SELECT now FROM present) - published_at)::float8 FROM head)
"""
# Age of the oldest checkpoint published since the newest one that this witness has seen.
_BEHIND = """
SELECT extract(epoch FROM clock_timestamp() - published_at)::float8 FROM checkpoints
 WHERE generation = (SELECT max(generation) FROM log_generations) AND note IS NOT NULL
   AND size > coalesce((SELECT max(size) FROM {table}
                         WHERE generation = (SELECT max(generation) FROM log_generations)), 0)
 ORDER BY size LIMIT 1
"""
_TABLES = {
    Voucher.TIMESTAMPS: "checkpoint_timestamps",
    Voucher.WITNESSES: "checkpoint_cosignatures",
}


def read(session: Session, others: frozenset[Voucher]) -> LogFigures:
    """Return the figures, in a session that sees every tenant.

    `others` are the external vouchers in use, from `anchoring.status.asked`.
    """
    row = cursor(session).execute(_READ, {"most": MOST_COUNTED}).fetchone()
    if row is None:
        raise LookupError("a query of totals has one row")
    trouble, size, waiting, oldest, head_age = row
    unanchored = {Voucher.LOG: _oldest_entry(session)}
    unanchored |= {other: _oldest_checkpoint(session, other) for other in sorted(others)}
    ages = {voucher: max(age, 0.0) for voucher, age in unanchored.items()}
    return LogFigures(trouble, size, waiting, max(oldest, 0.0), head_age, ages)


def _oldest_entry(session: Session) -> float:
    since = monitor.unanchored_since(session)
    return 0.0 if since is None else (database_now(session) - since).total_seconds()


def _oldest_checkpoint(session: Session, other: Voucher) -> float:
    query = _BEHIND.format(table=_TABLES[other]).encode()
    return cursor(session, scalar_row).execute(query).fetchone() or 0.0
