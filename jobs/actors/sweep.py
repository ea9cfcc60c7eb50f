"""The sweeper, each second: rings what is due: lanes, jobs, rules, sessions to seal, the log.

Then it numbers rows that have waited long. A claim numbers rows too, but the books of a numbered
backlog are cheaper to read.
"""

import random
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final
from uuid import UUID

from app import metrics
from app.core.delivery import sweeping
from app.core.delivery.lanes import lanes
from app.core.log import generations
from app.core.records import statements
from app.core.rules import judging
from app.core.traces import assembly
from app.database import Database
from jobs.process.runtime import Runtime

# What is due besides lanes and jobs, by the actor that is rung for it.
OTHERS: Final[Mapping[str, str]] = {
    "judge": judging.DUE,
    "assemble": assembly.IS_DUE,
    "seal_sessions": statements.IS_DUE,
    "integrate": generations.IS_DUE,
}
# Age limit of their messages; the next sweep rings again.
_OTHERS_MS = 5_000
# Time budget per sweep: the next tick must not wait, and PostgreSQL has other work.
NUMBERING_SECONDS = 0.3


def run(here: Runtime) -> None:
    """Ring what is due: messages of earlier rings may be lost."""
    with here.database.across_tenants(scans=False) as session:
        unnumbered, until = sweeping.wake(session)
        due = sweeping.due(session, OTHERS)
    lanes_due, jobs_due = due.pop("deliver", ()), due.pop("run_job", ())
    here.tally.add(metrics.SWEEPS)
    here.tally.add(metrics.SWEPT, "lane", count=len(lanes_due))
    here.tally.add(metrics.SWEPT, "job", count=len(jobs_due))
    here.bell.ring_lanes(lanes_due)
    here.bell.ring_many("run_job", jobs_due)
    for actor, calls in due.items():
        here.bell.ring_many(actor, calls, max_age_ms=_OTHERS_MS)
    if unnumbered and number(here.database, unnumbered):
        with here.database.across_tenants() as session:
            sweeping.numbered(session, until)


def number(database: Database, unnumbered: Sequence[tuple[UUID, UUID]]) -> bool:
    """Number the waiting rows of these lanes, 500 of each in turn, for 0.3 s; say if all are done.

    Each batch is a transaction, which bounds how long a lane is locked; a locked lane is skipped.
    The order is random, so no lane is always last.
    """
    ends = time.monotonic() + NUMBERING_SECONDS
    waiting = deque(random.sample(unnumbered, len(unnumbered)))
    skipped = False
    while waiting and time.monotonic() < ends:
        lane = waiting.popleft()
        with database.transaction(lane[0]) as session:
            numbered = lanes.number_if_free(session, *lane)
        skipped = skipped or numbered is None
        if numbered == lanes.NUMBER_AT_ONCE:
            waiting.append(lane)
    return not waiting and not skipped
