"""Makes webhooks and events, and plays the worker: claims what is due, records what came of it.

The claims and the records are the worker's own (`app.core`); only the POST between is left out, and
its outcome is said by the test.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import text

from app.core.delivery import claims, outcomes, retries
from app.core.delivery.claims import Claimed
from app.core.delivery.lanes import lanes
from app.core.delivery.lanes.lanes import Lane
from app.core.delivery.outcomes import Outcome
from app.core.jobs import leases, steps
from app.core.replay import bulk_replay, send_now
from app.database import Database
from app.models import Job
from tests.support.callers.api import Api, FreshTenant
from tests.support.callers.making import finding_of, make_session, uuid_of

URL = "http://127.0.0.1:9/hook"
_COPY = """
WITH open AS (
    INSERT INTO open_deliveries (tenant_id, id, webhook_id, event_id, event_type, kind, priority,
                                 fresh, sequence, feed_sequence, status, attempts, next_attempt_at,
                                 lease_until, failure, outcome)
    SELECT tenant_id, id_beside(event_id), webhook_id, event_id, event_type, kind, priority,
           fresh, sequence + n, feed_sequence + n, status, attempts, next_attempt_at, lease_until,
           failure, outcome
      FROM open_deliveries, generate_series(1, :more) AS n WHERE status = :status
)
INSERT INTO ended_deliveries (tenant_id, id, webhook_id, event_id, event_type, kind, priority,
                              sequence, status, attempts, created_at, finished_at, failure, outcome)
SELECT tenant_id, id_beside(event_id), webhook_id, event_id, event_type, kind, priority,
       sequence + n, status, attempts, created_at, finished_at, failure, outcome
  FROM ended_deliveries, generate_series(1, :more) AS n WHERE status = :status
"""
_STEPS = {bulk_replay.KIND: bulk_replay.step, send_now.KIND: send_now.step}
ONE_TRY = (0.0,)
TWO_TRIES = (0.0, 300.0)


def make_webhook(api: Api, **fields: Any) -> dict[str, Any]:
    """Make a webhook."""
    return api.made("/v1/webhooks", {"url": URL} | fields)


def make_findings(api: Api, count: int) -> list[dict[str, Any]]:
    """Make findings, and so as many events."""
    session_id = make_session(api)["id"]
    return list(
        api.made("/v1/findings/batch", {"findings": [finding_of(session_id)] * count})["data"]
    )


def deliveries(webhook: dict[str, Any], query: str = "") -> str:
    """Return the path of a webhook's deliveries."""
    return f"/v1/webhooks/{webhook['id']}/deliveries{query}"


def history(api: Api, webhook: dict[str, Any], query: str = "") -> list[dict[str, Any]]:
    """Return the deliveries of a webhook, newest first."""
    return api.rows(f"/v1/webhooks/{webhook['id']}/deliveries?{query}")


def books(api: Api, webhook: dict[str, Any], *, exact: bool = False) -> dict[str, Any]:
    """Return the accounting of a webhook."""
    query = "?exact=true" if exact else ""
    return api.found(f"/v1/webhooks/{webhook['id']}/accounting{query}")


class Worker:
    """Plays the worker for one tenant."""

    def __init__(self, database: Database, tenant: FreshTenant) -> None:
        self._database = database
        self._tenant_id = tenant.id

    def claim(self, webhook: dict[str, Any], limit: int = 1000) -> tuple[Lane, list[Claimed]]:
        """Number and claim what is due."""
        webhook_id = uuid_of(webhook["id"])
        with self._database.transaction(self._tenant_id) as session:
            lane = lanes.load(session, self._tenant_id, webhook_id)
            assert lane is not None
            while lanes.number(session, self._tenant_id, webhook_id):
                pass
            return lane, claims.claim(session, lane, limit)()

    def record(
        self,
        lane: Lane,
        claimed: Sequence[Claimed],
        status: int | None,
        schedule: Sequence[float] = ONE_TRY,
        **details: Any,
    ) -> None:
        """Record that each claimed row was answered with `status` (None: not at all)."""
        made = [outcome_of(lane, row, status, schedule, **details) for row in claimed]
        with self._database.across_tenants() as session:
            outcomes.record(
                session,
                made,
                first_pause=timedelta(seconds=30),
                disable_after=timedelta(days=5),
            )

    def send(
        self,
        webhook: dict[str, Any],
        status: int | None = 200,
        schedule: Sequence[float] = ONE_TRY,
        *,
        limit: int = 1000,
        **details: Any,
    ) -> int:
        """Claim what is due and record one outcome for all of it; return how many rows."""
        lane, claimed = self.claim(webhook, limit)
        if claimed:
            self.record(lane, claimed, status, schedule, **details)
        return len(claimed)

    def step(self, job: dict[str, Any]) -> bool:
        """Do one step of a job that sends, as the actor does; return whether there was one."""
        job_id = uuid_of(job["id"])
        with self._database.transaction(self._tenant_id) as session:
            claimed = leases.claim(session, self._tenant_id, job_id)
        if claimed is None:
            return False
        with self._database.transaction(self._tenant_id) as session:
            step = _STEPS[claimed.kind](session, self._tenant_id, claimed)
            assert steps.advance(session, claimed, step)
        return True

    def finish(self, job: dict[str, Any]) -> None:
        """Do every step of a job that has no rate, until it waits for what it has sent."""
        while self.step(job):
            pass

    def unpause(self) -> None:
        """End the pause of every lane."""
        self.run("UPDATE lanes SET paused_until = NULL, pause_level = 0")

    def make_due(self) -> None:
        """Let every open delivery be due."""
        due = "next_attempt_at = clock_timestamp()"
        self.run(f"UPDATE open_deliveries SET {due}")

    def copy(self, status: str, more: int) -> None:
        """Store so many more deliveries like the one of this status, each with its own number."""
        self.run(_COPY, status=status, more=more)

    def count_again(self, job: dict[str, Any]) -> None:
        """Let a job that waits count again, and do what follows."""
        job_id = uuid_of(job["id"])
        self.run("UPDATE jobs SET run_at = clock_timestamp() WHERE id = :job", job=job_id)
        self.finish(job)

    def claim_job(self, job: dict[str, Any]) -> Job:
        """Lease a job, as a worker that is about to die does."""
        with self._database.transaction(self._tenant_id) as session:
            claimed = leases.claim(session, self._tenant_id, uuid_of(job["id"]))
        assert claimed is not None
        return claimed

    def run(self, statement: str, **values: Any) -> None:
        """Change the tenant's rows as time or a crash would."""
        with self._database.transaction(self._tenant_id) as session:
            session.execute(text(statement), values)


def outcome_of(
    lane: Lane,
    row: Claimed,
    status: int | None = 200,
    schedule: Sequence[float] = ONE_TRY,
    **details: Any,
) -> Outcome:
    """Return the outcome of a claimed row that was answered with `status` (None: not at all)."""
    verdict = retries.judge(status, None, attempt=row.attempt, schedule=schedule, now=lane.now)
    return Outcome(
        tenant_id=lane.tenant_id,
        webhook_id=lane.webhook_id,
        delivery_id=row.id,
        receiver_since=lane.receiver_since,
        kind=row.kind,
        claim_no=row.claim_no,
        number=row.attempt,
        probe=lane.pause_level > 0,
        verdict=verdict,
        outcome="timeout" if status is None else verdict.status,
        started_at=lane.now,
        ended_at=lane.now,
        status_code=status,
        **details,
    )
