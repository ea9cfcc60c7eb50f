"""What the steps of a delivery cost as more waits, and as webhooks and tenants become more.

Each step is the service's own code in a transaction, commit included, in a database of the bench's
own; no worker runs there. One lane, or the lanes in turns, give up fifty deliveries at a time.
"""

import itertools
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TypeVar
from uuid import UUID

from app import ids
from app.core import findings
from app.core.callers import Caller, Role
from app.core.delivery import accounting, claims, outcomes, sweeping
from app.core.delivery.claims import Claimed
from app.core.delivery.history import delivery_list
from app.core.delivery.history.delivery_list import Filters
from app.core.delivery.lanes import lanes
from app.core.delivery.lanes.lanes import Lane
from app.core.delivery.outcomes import Outcome
from app.core.delivery.retries import Blame, Verdict
from app.core.findings import NewFinding
from app.database import Database, Tx
from bench.datasets import crowd
from bench.datasets.crowd import Crowd
from bench.figures import Bound, Figure, Reach, median, percentile
from bench.lab import Lab, owner_url
from bench.scale import Scale

_CLAIM = 50
_PAGE = 50
# What must stay quick even with a million deliveries waiting.
_BOUNDED = ("claim", "sweep", "history", "accounting")

Times = dict[str, list[float]]
_Result = TypeVar("_Result")


def run(lab: Lab, scale: Scale) -> Iterator[Figure]:
    """Measure one lane with more and more waiting, then many lanes and tenants."""
    with lab.migrated() as (settings, database):
        admin_url = owner_url(settings)
        one = crowd.make(admin_url, tenants=1, webhooks=1)
        least: Times = {}
        for waiting in scale.backlogs:
            crowd.let_wait(one, admin_url, database, waiting)
            times = _steps(database, one, scale)
            yield from _figures(f"{waiting} waiting", times, least)
            least = least or times
    for tenants, webhooks in ((1, scale.webhooks), (scale.tenants, 1)):
        with lab.migrated() as (settings, database):
            admin_url = owner_url(settings)
            many = crowd.make(admin_url, tenants=tenants, webhooks=webhooks)
            crowd.let_wait(many, admin_url, database, scale.backlogs[1] // (tenants * webhooks))
            words = f"{tenants} tenants with {webhooks} webhooks, {many.waiting} waiting on each"
            yield from _figures(words, _steps(database, many, scale), least)


def _figures(words: str, times: Times, least: Times) -> Iterator[Figure]:
    for step, milliseconds in times.items():
        bound = Bound("the least", median(least[step])) if least else None
        reach = Reach(at_most=50) if step.split()[0] in _BOUNDED else None
        note = (
            f"p95 {percentile(milliseconds, 95):.1f} ms, p99 {percentile(milliseconds, 99):.1f} ms"
        )
        name = f"{step}, {words}"
        yield Figure(name, median(milliseconds), " ms", bound, reach, note)


def _steps(database: Database, many: Crowd, scale: Scale) -> Times:
    """Time every step again and again, on the lanes in turns; return milliseconds by step."""
    steps = Steps(database, many)
    # A lane of a thousand must not run dry.
    repeats = min(scale.repeats, many.waiting * len(many.lanes) // _CLAIM // 2)
    for tenant_id, webhook_id in itertools.islice(itertools.cycle(many.lanes), repeats):
        steps.all_on(tenant_id, webhook_id)
    return dict(steps.times)


class _Undo(Exception):
    """Ends a transaction that must leave no trace."""


class Steps:
    """The steps of a delivery, and their times in milliseconds."""

    def __init__(self, database: Database, many: Crowd) -> None:
        self._database = database
        self._crowd = many
        self._caller = Caller(many.tenant_id, ids.new(), Role.WRITE, None, "bench")
        self.times: defaultdict[str, list[float]] = defaultdict(list)

    def all_on(self, tenant_id: UUID, webhook_id: UUID) -> None:
        """Do each step once, on one lane."""
        self.timed("number, at most 500", lambda: self._number(tenant_id, webhook_id))
        lane, claimed = self.timed(f"claim of {_CLAIM}", lambda: self.claim(tenant_id, webhook_id))
        self.timed(f"record of {_CLAIM}", lambda: self.record(lane, claimed))
        self.timed("leave a lane", lambda: self.leave(tenant_id, webhook_id))
        self.timed("sweep", self.sweep)
        self.timed("history page", lambda: self.page(tenant_id, webhook_id, None))
        middle = claimed[-1].id if claimed else None
        self.timed("history page, far back", lambda: self.page(tenant_id, webhook_id, middle))
        self.accounting(tenant_id, webhook_id)
        self.timed("finding posted", self.post)

    def accounting(self, tenant_id: UUID, webhook_id: UUID) -> None:
        """Read the books of one lane, as they are answered and with all that waits scanned."""
        self.timed("accounting", lambda: self._accounting(tenant_id, webhook_id, exact=False))
        self.timed("exact accounting", lambda: self._accounting(tenant_id, webhook_id, exact=True))

    def timed(self, step: str, work: Callable[[], _Result]) -> _Result:
        """Do a step, and note its time."""
        began = time.perf_counter()
        result = work()
        self.times[step].append((time.perf_counter() - began) * 1000)
        return result

    def _number(self, tenant_id: UUID, webhook_id: UUID) -> None:
        with self._database.transaction(tenant_id) as session:
            lanes.number(session, tenant_id, webhook_id)

    def claim(self, tenant_id: UUID, webhook_id: UUID) -> tuple[Lane, list[Claimed]]:
        """Claim what is due."""
        with self._database.raw_transaction(tenant_id) as session:
            return claim_in(session, tenant_id, webhook_id)

    def record(self, lane: Lane, claimed: list[Claimed]) -> None:
        """Have all of them succeeded."""
        with self._database.across_tenants(scans=False) as session:
            outcomes.record(
                session,
                [_success(lane, each) for each in claimed],
                first_pause=timedelta(seconds=30),
                disable_after=timedelta(days=5),
            )

    def leave(self, tenant_id: UUID, webhook_id: UUID) -> None:
        """Compute when the lane is due next."""
        with self._database.raw_transaction(tenant_id) as session:
            lanes.load(session, tenant_id, webhook_id)
            lanes.reschedule(session, tenant_id, webhook_id)

    def sweep(self, *, keep: bool = False) -> None:
        """Sweep, and unless it is kept take it back: a lane that was rung waits two seconds."""
        try:
            with self._database.across_tenants(scans=False) as session:
                sweeping.wake(session)
                sweeping.due(session)
                if not keep:
                    raise _Undo
        except _Undo:
            pass

    def page(self, tenant_id: UUID, webhook_id: UUID, before: UUID | None) -> None:
        """Read a page of the webhook's deliveries."""
        with self._database.transaction(tenant_id) as session:
            wanted = Filters(webhook_id=webhook_id)
            delivery_list.page(session, tenant_id, wanted, before=before, limit=_PAGE)

    def _accounting(self, tenant_id: UUID, webhook_id: UUID, *, exact: bool) -> None:
        with self._database.transaction(tenant_id) as session:
            accounting.of(session, tenant_id, webhook_id, exact=exact)

    def post(self, count: int = 1) -> None:
        """Store findings in one transaction."""
        finding = NewFinding(self._crowd.session_id, "bench", "low", "A finding of the bench")
        with self._database.transaction(self._crowd.tenant_id) as session:
            findings.add(session, self._caller, [finding] * count)


def claim_in(session: Tx, tenant_id: UUID, webhook_id: UUID) -> tuple[Lane, list[Claimed]]:
    """Claim what is due in a transaction that is open."""
    lane = lanes.load(session, tenant_id, webhook_id)
    assert lane is not None
    return lane, claims.claim(session, lane, _CLAIM)()


def _success(lane: Lane, claimed: Claimed) -> Outcome:
    return Outcome(
        tenant_id=lane.tenant_id,
        webhook_id=lane.webhook_id,
        delivery_id=claimed.id,
        receiver_since=lane.receiver_since,
        kind=claimed.kind,
        claim_no=claimed.claim_no,
        number=claimed.attempt,
        probe=False,
        verdict=Verdict("succeeded", Blame.NOBODY),
        outcome="succeeded",
        started_at=lane.now,
        ended_at=lane.now,
        total_ms=1.0,
        status_code=204,
        response_headers='[["server","bench"]]',
        response_body=b"",
    )
