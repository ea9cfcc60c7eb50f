"""Recording outcomes: each delivery is counted once, whoever claimed it and however late."""

from datetime import timedelta
from uuid import UUID

from sqlalchemy import text

from app import clock, ids
from app.core.callers import Caller, Role
from app.core.delivery import accounting, claims, events, outcomes
from app.core.delivery.claims import Claimed
from app.core.delivery.events import NewEvent
from app.core.delivery.lanes import lanes
from app.core.delivery.outcomes import Outcome, Recorded
from app.core.delivery.retries import Blame, Verdict
from app.core.webhooks import webhooks
from app.database import Database
from app.settings import Settings
from tests.support.callers.api import FreshTenant

URL = "http://127.0.0.1:9/"


def test_a_late_outcome_beside_its_successor_s_is_fenced_and_counts_once(
    database: Database, settings: Settings, tenant: FreshTenant
) -> None:
    webhook = _webhook(database, settings, tenant.id)
    with database.transaction(tenant.id) as session:
        events.emit(session, tenant.id, [NewEvent("finding.created", {}, clock.now())])
    late = _claim(database, tenant.id, webhook)
    with database.transaction(tenant.id) as session:
        session.execute(text("UPDATE deliveries SET next_attempt_at = clock_timestamp()"))
    successor = _claim(database, tenant.id, webhook)
    assert (late.id, late.claim_no + 1) == (successor.id, successor.claim_no)

    recorded = _record(
        database, _succeeded(tenant.id, webhook, late), _succeeded(tenant.id, webhook, successor)
    )

    assert recorded.ended == {("event", "succeeded"): 1}
    assert [each.claim_no for each in recorded.fenced] == [late.claim_no]
    with database.transaction(tenant.id) as session:
        books = accounting.of(session, tenant.id, webhook)
        attempts = session.scalar(text("SELECT count(*) FROM delivery_attempts"))
    assert (books["succeeded"], books["balanced"], attempts) == (1, True, 1)


def _webhook(database: Database, settings: Settings, tenant_id: UUID) -> UUID:
    caller = Caller(tenant_id, ids.new(), Role.ADMIN, None, "test")
    with database.transaction(tenant_id) as session:
        made, _ = webhooks.create(session, caller, settings, {"url": URL})
        return made.id


def _claim(database: Database, tenant_id: UUID, webhook: UUID) -> Claimed:
    with database.transaction(tenant_id) as session:
        lane = lanes.load(session, tenant_id, webhook)
        assert lane is not None
        (claimed,) = claims.claim(session, lane, 10)()
        return claimed


def _succeeded(tenant_id: UUID, webhook: UUID, claimed: Claimed) -> Outcome:
    return Outcome(
        tenant_id=tenant_id,
        webhook_id=webhook,
        delivery_id=claimed.id,
        url=URL,
        kind=claimed.kind,
        claim_no=claimed.claim_no,
        number=claimed.attempt,
        probe=False,
        verdict=Verdict("succeeded", Blame.NOBODY),
        outcome="succeeded",
        started_at=clock.now(),
        ended_at=clock.now(),
        status_code=200,
    )


def _record(database: Database, *made: Outcome) -> Recorded:
    with database.across_tenants() as session:
        return outcomes.record(
            session,
            made,
            first_pause=timedelta(seconds=30),
            disable_after=timedelta(days=5),
        )
