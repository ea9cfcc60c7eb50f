"""A worker's turn at the rules of one tenant: a second at most, then others have theirs."""

import time
from uuid import UUID

import structlog

from app.core.rules import judging, matches
from app.core.rules.judging import Batch, NotOurs, Turn
from app.errors import Busy, EvaluatorLost
from jobs.process.middleware import shutting_down
from jobs.process.runtime import Runtime

_log = structlog.get_logger(__name__)

TURN_SECONDS = 1.0


def run(here: Runtime, tenant_id: str) -> None:
    """Judge what waits of a tenant, and tell what was withheld in hours that ended."""
    tenant = UUID(tenant_id)
    with here.database.transaction(tenant) as session:
        turn = judging.claim(session, tenant)
    if turn is None:
        return
    with here.database.transaction(tenant) as session:
        matches.tell(session, tenant)
    slow, more = False, False
    try:
        until = time.monotonic() + TURN_SECONDS
        while (more := not shutting_down()) and time.monotonic() < until and not slow:
            done, slow = step(here, turn)
            if not done and not slow:
                more = False
                break
    except Busy:
        # Another tenant is being judged: the sweep rings this one again.
        more = False
    except EvaluatorLost as error:
        _log.error("evaluator_lost", detail=error.detail)
        more = False
    finally:
        with here.database.transaction(tenant) as session:
            judging.leave(session, turn, slow=slow or (turn.slow and more))
    if more:
        here.bell.ring("judge", (tenant,))


def step(here: Runtime, turn: Turn) -> tuple[int, bool]:
    """Judge one batch; return how much was done, and whether a rule of it was slow."""

    def read() -> Batch | None:
        with here.database.transaction(turn.tenant_id) as session:
            return judging.read(session, here.settings.master_keys, turn.tenant_id)

    batch = here.fetching(read)
    if batch is None:
        return 0, False

    def renew() -> None:
        with here.database.transaction(turn.tenant_id) as session:
            judging.renew(session, turn)

    judged = judging.judge(here.evaluators, turn, batch, renew)
    try:
        with here.database.transaction(turn.tenant_id) as session:
            done = judging.record(session, turn, batch, judged)
    except NotOurs:
        _log.info("verdicts_outdated", tenant=str(turn.tenant_id))
        return 0, False
    return done, judged.slow and not turn.slow
