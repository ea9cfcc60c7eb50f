"""Whoever has numbered rows may die at once: the sweep finds them all the same."""

from collections.abc import Callable
from uuid import UUID

from app import ids
from app.core.delivery import sweeping
from app.core.delivery.lanes import lanes
from app.database import Database
from tests.support.callers.api import Api, FreshTenant
from tests.support.callers.making import finding_of, make_session


def webhook_with_a_waiting_event(api: Api) -> UUID:
    made = api.post("/v1/webhooks", {"url": "http://127.0.0.1:9/"}).json
    session = make_session(api)
    assert api.post("/v1/findings", finding_of(session["id"])).status_code == 201
    webhook_id = ids.parse("whk", made["id"])
    assert webhook_id is not None
    return webhook_id


def swept(database: Database) -> set[UUID]:
    with database.across_tenants() as session:
        sweeping.wake(session)
        return {webhook_id for _, webhook_id in sweeping.due(session).lanes}


def test_rows_that_a_worker_numbered_before_it_was_killed(
    database: Database, tenant: FreshTenant, api: Callable[..., Api]
) -> None:
    webhook_id = webhook_with_a_waiting_event(api())
    with database.transaction(tenant.id) as session:
        assert lanes.number(session, tenant.id, webhook_id) == 1
    assert webhook_id in swept(database)


def test_rows_that_a_reader_of_the_feed_numbered(
    database: Database, api: Callable[..., Api]
) -> None:
    webhook_id = webhook_with_a_waiting_event(api())
    path = f"/v1/webhooks/{ids.text('whk', webhook_id)}/deliveries"
    assert [each["sequence"] for each in api().get(f"{path}?after=0").json["data"]] == [1]
    assert webhook_id in swept(database)
