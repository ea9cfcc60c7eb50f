"""Recording outcomes: each delivery is counted once, for any claim and however late."""

from datetime import timedelta
from uuid import UUID

from app import clock
from app.core.delivery import outcomes
from app.core.delivery.claims import Claimed
from app.core.delivery.outcomes import Outcome, Recorded
from app.core.delivery.retries import Blame, Verdict
from app.database import Database
from app.settings import Settings
from tests.support.callers.api import FreshTenant
from tests.support.workers.outbox import Outbox


def test_a_late_outcome_beside_its_successor_s_is_fenced_and_counts_once(
    database: Database, settings: Settings, tenant: FreshTenant
) -> None:
    outbox = Outbox(database, settings, tenant.id)
    webhook = outbox.webhook()
    outbox.emit()
    (late,) = outbox.claim(webhook)
    outbox.run("UPDATE open_deliveries SET lease_until = clock_timestamp()")
    (successor,) = outbox.claim(webhook)
    assert (late.id, late.claim_no + 1) == (successor.id, successor.claim_no)

    told = recorded(
        database, succeeded(tenant.id, webhook, late), succeeded(tenant.id, webhook, successor)
    )

    assert told.ended == {("event", "succeeded"): 1}
    assert [each.claim_no for each in told.fenced] == [late.claim_no]
    books = outbox.books(webhook)
    assert (books["succeeded"], books["balanced"], len(outbox.attempts())) == (1, True, 1)


def succeeded(tenant_id: UUID, webhook: UUID, claimed: Claimed) -> Outcome:
    return Outcome(
        tenant_id=tenant_id,
        webhook_id=webhook,
        delivery_id=claimed.id,
        receiver_since=None,
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


def recorded(database: Database, *made: Outcome) -> Recorded:
    with database.across_tenants() as session:
        return outcomes.record(
            session,
            made,
            first_pause=timedelta(seconds=30),
            disable_after=timedelta(days=5),
        )
