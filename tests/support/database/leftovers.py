"""What a test may not leave to others: rows that are no tenant's, and threads."""

import threading

from sqlalchemy import Engine, text

from app.models import NO_TENANT
from tests.support.faults import until
from tests.support.secrets import MASTER_KEYS

# What the whole service is judged by, in `/readyz` and by operators. (A log that others grew is
# no harm: tests reckon with its other leaves.)
_TAKE = """
WITH keys AS (
  DELETE FROM master_keys WHERE key_id <> ALL (:ours) RETURNING 'master_keys ' || key_id AS said
), breaks AS (
  DELETE FROM audit_breaks RETURNING 'audit_breaks ' || tenant_id AS said
), troubles AS (
  DELETE FROM anchoring_troubles RETURNING 'anchoring_troubles ' || part AS said
), waiting AS (
  DELETE FROM jobs WHERE tenant_id = :nobody AND finished_at IS NULL
  RETURNING 'jobs ' || kind AS said
)
SELECT said FROM keys UNION SELECT said FROM breaks
 UNION SELECT said FROM troubles UNION SELECT said FROM waiting
"""

# Threads of the product that write to the stores, each closed with what began it.
_WRITERS = ("announcer", "counters", "flusher", "process-report", "wakeups")


def take_rows(owner: Engine) -> list[str]:
    """Delete the rows that are no tenant's and that a later test would meet; name them."""
    # Of each test: one statement, without BEGIN and COMMIT.
    with owner.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        values = {"ours": list(MASTER_KEYS.ids), "nobody": NO_TENANT}
        return list(connection.scalars(text(_TAKE), values))


def end_of_threads(before: set[threading.Thread]) -> None:
    """Wait for the end of the threads that write by themselves, but those `before`."""

    def running() -> set[str]:
        threads = set(threading.enumerate()) - before
        return {thread.name for thread in threads} & {*_WRITERS}

    try:
        until(lambda: not running())
    except AssertionError as error:
        raise AssertionError(f"a test leaves threads: {running()}") from error
