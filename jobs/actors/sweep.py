"""The sweeper, each second: rings what is due: lanes, jobs, rules, sessions to seal, the log.

Then it numbers rows that have waited long. A claim numbers rows too, but the books of a numbered
backlog are cheaper to read.
"""

import random
import time
from collections import deque
from collections.abc import Sequence
from uuid import UUID

from app import metrics
from app.core.delivery import sweeping
from app.core.delivery.lanes import lanes
from app.core.log import generations
from app.core.rules import judging
from app.core.statements import statements
from app.core.traces import assembly
from app.database import Database
from app.queue import Bell
from jobs.process.runtime import Runtime

# Age limits of messages; the next sweep rings again.
_INTEGRATE_MS = _ASSEMBLE_MS = _JUDGE_MS = _SEAL_MS = 5_000
# Time budget per sweep: the next tick must not wait, and PostgreSQL has other work.
NUMBERING_SECONDS = 0.3


def run(here: Runtime) -> None:
    """Ring due lanes, jobs and tenants' rules: messages of earlier rings may be lost."""
    with here.database.across_tenants(scans=False) as session:
        unnumbered, until = sweeping.wake(session)
        lanes_due, jobs_due = sweeping.due(session)
        to_judge = judging.due(session)
        traces_wait = bool(assembly.due_tenants(session))
        sessions_wait = statements.is_due(session)
    here.tally.add(metrics.SWEEPS)
    here.tally.add(metrics.SWEPT, "lane", count=len(lanes_due))
    here.tally.add(metrics.SWEPT, "job", count=len(jobs_due))
    here.bell.ring_lanes(lanes_due)
    here.bell.ring_many("run_job", jobs_due)
    here.bell.ring_many("judge", [(each,) for each in to_judge], max_age_ms=_JUDGE_MS)
    if traces_wait:
        here.bell.ring("assemble", (), max_age_ms=_ASSEMBLE_MS)
    if sessions_wait:
        here.bell.ring("seal_sessions", (), max_age_ms=_SEAL_MS)
    ring_log(here.database, here.bell)
    if unnumbered and number(here.database, unnumbered):
        with here.database.across_tenants() as session:
            sweeping.numbered(session, until)


def ring_log(database: Database, bell: Bell) -> None:
    """Ring the log's integration if leaves wait."""
    if generations.load_state(database).waits:
        bell.ring("integrate", (), max_age_ms=_INTEGRATE_MS)


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
